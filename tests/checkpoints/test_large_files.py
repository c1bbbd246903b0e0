"""Large sound files are read: limits are of work for each byte of a file, not of how much it holds."""

import json
from pathlib import Path

import pytest
import torch

from modelscope_cli.analysis.weights.statistics import with_stats
from modelscope_cli.analysis.weights.weights import describe_tensors
from modelscope_cli.checkpoints import pickle_machine as machine
from modelscope_cli.checkpoints.entries import NameJoiner, UnsupportedError
from modelscope_cli.checkpoints.reading import read_contents


@pytest.fixture(autouse=True)
def as_many_operations_as_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one pickle may do is tested with the pickle machine; here, all that comes after it."""
    monkeypatch.setattr(machine, "MAX_OPERATIONS", 10**9, raising=False)


def test_a_torch_file_of_20_000_tensors(tmp_path: Path) -> None:
    one = torch.ones(1)  # in one storage, as that is quick to write
    torch.save({"state_dict": {f"layers.{at}.weight": one[:] for at in range(20_000)}}, tmp_path / "a.pt")
    assert len(read_contents(tmp_path / "a.pt").tensors) == 20_000


def test_an_index_of_10_megabytes(tmp_path: Path) -> None:
    names = [
        f"model.layers.{at}.self_attention.query_key_value.projection.weight{'x' * 380}"
        for at in range(20_000)
    ]
    header = {
        name: {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]} for at, name in enumerate(names)
    }
    raw = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(len(names)))
    index = {"weight_map": dict.fromkeys(names, "a.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
    assert (tmp_path / "model.safetensors.index.json").stat().st_size > 9_000_000
    assert len(read_contents(tmp_path).tensors) == len(names)


def test_names_that_repeat_long_parts() -> None:
    names = NameJoiner()
    for _ in range(1000):
        names.join("x" * 65_000)
    with pytest.raises(UnsupportedError):
        names.join("x" * 5_000_000)


def test_statistics_of_small_tensors(tmp_path: Path) -> None:
    values = {
        "even": torch.arange(10.0),
        "large": torch.tensor([1e300, -1e300], dtype=torch.float64),
        "strange": torch.tensor([float("nan"), 1.0, float("inf")]),
        "near": torch.tensor([1e8, 1e8 + 8]),
        "one": torch.tensor(3),
        "bfloat16": torch.tensor([0.5, 0.0]).bfloat16(),
    }
    torch.save(values, tmp_path / "a.pt")
    tensors = read_contents(tmp_path / "a.pt").tensors
    for row in with_stats(describe_tensors(tensors), tensors, lambda entries: entries):
        exact = values[row.name].double()
        finite = exact[exact.isfinite()]
        assert row.mean == pytest.approx(finite.mean().item(), rel=1e-6)
        assert (row.min, row.max) == (finite.min().item(), finite.max().item())
        assert row.zero_fraction == pytest.approx((exact == 0).double().mean().item())
        if row.name != "large":
            assert row.std == pytest.approx(finite.std(correction=0).item(), rel=1e-6)
