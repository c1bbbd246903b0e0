"""`diff` of two documents of `stats`: faults are named."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.analysis.comparison.results import rounding_at, unit_of
from modelscope_cli.errors import UsageError


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
    ms.stats(net, X).save(tmp_path / "a.json")
    return tmp_path / "a.json"


def test_an_input_without_a_finite_value_is_another_input(net: Net, file: Path) -> None:
    record = ms.diff(file, ms.stats(net, torch.full_like(X, torch.nan)))
    assert record.first_divergence == "input mean"


def test_the_same_run_is_the_same_whatever_the_batch(net: Net, file: Path) -> None:
    record = ms.diff(file, ms.stats(net, X))
    assert record.is_same
    assert record.settings == ()
    assert {row.status for row in record.figures or ()} == {"same"}
    assert ms.diff(file, ms.stats(net, [X[0], X[1]])).is_same


@pytest.mark.parametrize("name", ["conv.weight", "conv.bias", "down.weight", "fc.bias"])
def test_one_weight_is_seen_in_its_layer(net: Net, file: Path, name: str) -> None:
    with torch.no_grad():
        net.state_dict()[name].view(-1)[1] += 1e-2
    record = ms.diff(file, ms.stats(net, X))
    assert not record.is_same
    assert (record.first_divergence or "").partition(" ")[0] == name.rpartition(".")[0]


def test_another_input_is_named_before_any_layer(net: Net, file: Path) -> None:
    record = ms.diff(file, ms.stats(net, X + 0.01))
    assert record.first_divergence == "input mean"


def test_settings_that_differ_are_named_and_are_no_difference(net: Net, file: Path) -> None:
    other = ms.stats(net, X, seed=3)
    other = replace(other, run=replace(other.run, versions={**other.run.versions, "torch": "2.0"}))
    record = ms.diff(file, other)
    assert record.is_same
    assert {one.name: (one.a, one.b) for one in record.settings} == {
        "seed": ("0", "3"),
        "torch": (torch.__version__.partition("+")[0], "2.0"),
    }
    train = ms.diff(file, ms.stats(net, X, mode="train"))
    assert [(one.name, one.a, one.b) for one in train.settings] == [("mode", "eval", "train")]
    image = Image.new("RGB", (20, 20), (200, 40, 90))
    prepared = [ms.stats(net, image, size=17, mean=mean, std=1) for mean in (0, 0.5)]
    assert [one.name for one in ms.diff(*prepared).settings] == ["preprocessing"]


def test_the_tolerance_is_that_of_the_coarser_dtype(net: Net, file: Path) -> None:
    record = ms.diff(file, ms.stats(net.bfloat16(), X.bfloat16()))
    assert record.tolerance == close(rounding_at(6, "bfloat16"))
    assert "dtype" in {one.name for one in record.settings}
    assert record.is_same
    assert not ms.diff(file, ms.stats(net.float(), X), tolerance=0).is_same  # rounded weights


def test_no_statistic_moves_by_more_than_its_bound() -> None:
    """Against values that differ by errors of a known size."""
    random = torch.Generator().manual_seed(0)
    values = torch.randn(100, 64, generator=random).relu() * 5
    noise = torch.randn(values.shape, generator=random)
    e = 1e-3
    other = values + noise * (e * values.norm() / noise.norm())
    net = nn.Sequential(nn.Identity())
    a, b = (ms.stats(net, one).layers[0] for one in (values, other))
    for key in ("mean", "std", "rms", "min", "max"):
        apart = abs(getattr(a, key) - getattr(b, key))
        assert 0 < apart <= e * unit_of(a, key, getattr(a, key), e)


SCRIPT = """
import sys, torch, modelscope_cli as ms
sys.path.insert(0, sys.argv[2])
from test_diff_results import Net, X
net = Net().eval()
net.load_state_dict(torch.load(sys.argv[1] + ".pt"))
record = ms.diff(sys.argv[1], ms.stats(net, X))
print(record.is_same, len(record.figures))
"""


@pytest.mark.slow
def test_the_plainest_kernels_are_not_a_difference(net: Net, file: Path) -> None:
    torch.save(net.state_dict(), f"{file}.pt")
    plain = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    line = [sys.executable, "-c", SCRIPT, str(file), str(Path(__file__).parent)]
    env = {**plain, "PYTHONPATH": f"{paths}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("True ")


def test_a_result_and_a_model_are_refused_with_a_line_that_works(net: Net, file: Path) -> None:
    with pytest.raises(UsageError, match="is a saved result, but the other side is not") as caught:
        ms.diff(file, "resnet18")
    assert "modelscope stats resnet18 -o other.json" in caught.value.hint
    with pytest.raises(UsageError, match="nothing to compare"):
        ms.diff(file)
    with pytest.raises(UsageError, match="these are saved results"):
        ms.diff(file, ms.stats(net, X), b_dtype="float16")
