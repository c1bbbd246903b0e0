"""Fingerprints: projections against NumPy, faults that were planted, other kernels, tensors of other runtimes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.analysis.comparison.across_machines import tolerance_at
from modelscope_cli.analysis.comparison.fingerprint import project
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.report.reading import read_fingerprint


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.relu = nn.ReLU()
        self.down = nn.Conv2d(8, 4, 3, stride=2)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.down(self.relu(self.conv(x)))).mean((2, 3)))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(2, 3, 17, 17, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def file(net: Net, tmp_path: Path) -> Path:
    ms.stats(net, X, fingerprint=tmp_path / "a.json")
    return tmp_path / "a.json"


def test_projections_are_signed_sums_chosen_by_the_bytes_of_pcg64() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    stream = np.random.PCG64(20).random_raw(125).astype("<u8").tobytes()
    sums = [0.0] * 64
    for value, byte in zip(values, stream, strict=True):
        sums[byte % 64] += -value if byte & 64 else value
    assert project(values) == pytest.approx(sums)
    # Written down, since a file has to mean the same for ever.
    assert list(stream[:8]) == [122, 169, 106, 228, 235, 14, 179, 71]


@pytest.mark.parametrize("cut", [1, 7, 8, 333])
def test_projections_of_parts_add_up(cut: int) -> None:
    values = np.random.default_rng(0).normal(size=700)
    assert project(values[:cut]) + project(values[cut:], cut) == pytest.approx(project(values))


def test_distances_are_kept() -> None:
    random = np.random.default_rng(3)
    ratios = [
        float(np.linalg.norm(project(apart)) / np.linalg.norm(apart))
        for apart in random.normal(size=(200, 5000))
    ]
    assert abs(np.mean(ratios) - 1) < 0.03
    assert np.std(ratios) < math.sqrt(2 / 64)


def test_the_same_run_is_the_same_whatever_the_batch(net: Net, file: Path) -> None:
    record = ms.diff(str(file), net, X)
    assert record.is_same
    assert record.settings == ()
    assert [row.rel_l2 for row in record.layers or ()] == [0.0] * 7
    one_by_one = ms.diff(str(file), net, [X[0], X[1]])
    assert one_by_one.is_same


def test_one_weight_in_any_place_is_seen_and_named(net: Net, file: Path) -> None:
    random = np.random.default_rng(5)
    names = list(net.state_dict())
    for _ in range(20):
        name = names[random.integers(len(names))]
        values = net.state_dict()[name].view(-1)
        at = int(random.integers(len(values)))
        kept = values[at].clone()
        values[at] = kept * (1 + 1e-5)
        record = ms.diff(str(file), net, X)
        assert not record.is_same
        assert record.settings[0].name == "weights"
        assert name in record.settings[0].b
        values[at] = kept


def test_the_first_layer_that_computes_otherwise_is_named(net: Net, file: Path) -> None:
    net.down.stride = (2, 2)
    net.down.register_forward_hook(lambda module, given, output: output * (1 + 1e-4))
    record = ms.diff(str(file), net, X)
    assert record.first_divergence == "down"
    row = next(row for row in record.layers or () if row.name == "down")
    assert row.rel_l2 == pytest.approx(1e-4, rel=0.4)
    assert record.settings == ()


def test_another_input_is_said_before_any_layer(net: Net, file: Path) -> None:
    record = ms.diff(str(file), net, X + 0.01)
    assert (record.first_divergence or "").startswith("input")


def test_settings_that_differ_are_named(net: Net, file: Path) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        names = {one.name: (one.a, one.b) for one in ms.diff(str(file), net, X).settings}
    finally:
        torch.set_float32_matmul_precision(before)
    assert names["float32 matmul precision"] == (before, "high")
    assert "dtype" in {one.name for one in ms.diff(str(file), net.double(), X).settings}


SCRIPT = """
import sys, torch, modelscope_cli as ms
sys.path.insert(0, sys.argv[2])
from test_fingerprint import Net, X
torch.manual_seed(0)
record = ms.diff(sys.argv[1], Net().eval(), X)
print(record.is_same, max(row.rel_l2 for row in record.layers), *[one.name for one in record.settings], sep="|")
"""


def test_the_plainest_kernels_are_not_a_difference(file: Path) -> None:
    plain = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    line = [sys.executable, "-c", SCRIPT, str(file), str(Path(__file__).parent)]
    done = subprocess.run(line, env=plain, capture_output=True, text=True, check=True)
    is_same, worst, *settings = done.stdout.strip().split("|")
    assert float(worst) <= tolerance_at(7, ("float32",))
    assert "ATEN_CPU_CAPABILITY" in settings
    assert is_same == str("weights" not in settings)


def arrays(net: Net) -> dict[str, np.ndarray]:
    with torch.no_grad():
        conv = net.relu(net.conv(X))
        down = net.down(conv)
        return {
            "conv": net.conv(X).numpy(),
            "relu": conv.numpy(),
            "down": down.numpy(),
            "output": net(X).numpy(),
        }


def test_tensors_of_another_runtime_by_name(net: Net, file: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "b.npz", **{f"/{name}:0": array for name, array in arrays(net).items()})
    record = ms.diff(str(file), tmp_path / "b.npz")
    assert record.is_same
    assert [row.name for row in record.layers or ()] == ["conv", "relu", "down", ""]
    wrong = arrays(net)
    wrong["down"] = wrong["down"] * 1.01
    np.savez(tmp_path / "c.npz", **wrong)
    assert ms.diff(str(file), tmp_path / "c.npz").first_divergence == "down"


def test_tensors_of_another_runtime_by_size_and_value_with_channels_last(
    net: Net, file: Path, tmp_path: Path
) -> None:
    other = {
        f"Partitioned/{n}": array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
        for n, array in enumerate(arrays(net).values())
    }
    np.savez(tmp_path / "b.npz", **other, unknown=np.zeros(3))
    record = ms.diff(str(file), tmp_path / "b.npz")
    assert record.is_same
    assert len(record.layers or ()) == 4
    np.savez(tmp_path / "c.npz", unknown=np.zeros(3))
    with pytest.raises(CannotRunError, match="matches a layer"):
        ms.diff(str(file), tmp_path / "c.npz")


def test_the_file_is_a_result_and_damaged_ones_are_refused(net: Net, file: Path, tmp_path: Path) -> None:
    assert ms.read(file).fingerprint == read_fingerprint(file).fingerprint
    text = file.read_text()
    document = json.loads(text)

    def refused(content: str) -> str:
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(CannotRunError) as caught:
            ms.diff(str(tmp_path / "b.json"), net, X)
        return caught.value.message

    assert "is damaged" in refused(text[: len(text) // 2])
    document["fingerprint"]["layers"][0]["projections"][3] = None
    assert "is damaged" in refused(json.dumps(document))
    document["fingerprint"]["layers"][0]["projections"] = [1.0]
    assert "is damaged" in refused(json.dumps(document))
    document["fingerprint"]["layers"][0]["projections"] = "many"
    assert "is damaged" in refused(json.dumps(document))
    document["fingerprint"] = None
    assert "contains no fingerprint" in refused(json.dumps(document))


def test_what_is_missing_is_said_with_a_line_that_works(net: Net, file: Path) -> None:
    with pytest.raises(UsageError, match="was made from an input, but none is given"):
        ms.diff(str(file), net)
    with pytest.raises(UsageError, match="no model is given"):
        ms.diff(str(file))
    with pytest.raises(UsageError, match="does not apply to a fingerprint"):
        ms.diff(str(file), net, X, b_dtype="float16")


def test_the_tolerance_grows_with_depth_and_with_the_dtype() -> None:
    assert tolerance_at(4, ("float32",)) == 2 * tolerance_at(1, ("float32",))
    assert tolerance_at(1, ("float32", "bfloat16")) > 1e-3 > tolerance_at(100, ("float32",))
