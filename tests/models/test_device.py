from pathlib import Path
from typing import Any

import pytest
import torch

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.load import resolve_device, resolve_dtype


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    if hasattr(torch, "xpu"):
        monkeypatch.setattr(torch.xpu, "device_count", lambda: 0)


@pytest.mark.usefixtures("no_accelerator")
def test_auto_without_an_accelerator_is_the_cpu_and_says_so() -> None:
    device, note = resolve_device("auto")
    assert device == torch.device("cpu")
    assert note == "device: cpu (auto; no cuda, mps or xpu here)"


@pytest.mark.usefixtures("two_gpus")
def test_auto_prefers_cuda() -> None:
    device, note = resolve_device("AUTO")
    assert device == torch.device("cuda:0")
    assert note is not None
    assert note.startswith("device: cuda:0 (auto")


@pytest.mark.usefixtures("no_accelerator")
def test_auto_takes_mps_where_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert resolve_device("auto")[0] == torch.device("mps")
    assert resolve_device("mps:0")[0] == torch.device("mps:0")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("typed", "meant"), [
    ("0", "cuda:0"),
    ("1", "cuda:1"),
    ("cuda", "cuda"),
    ("CUDA:1", "cuda:1"),
    ("cpu", "cpu"),
    ("cpu:0", "cpu:0"),
])  # fmt: skip
def test_explicit_device_is_obeyed_without_a_note(typed: str, meant: str) -> None:
    assert resolve_device(typed) == (torch.device(meant), None)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("typed", ["2", "cuda:7", "cpu:1", "meta", "vulkan"])
def test_device_that_is_not_here_lists_those_that_are(typed: str) -> None:
    with pytest.raises(CannotRunError) as caught:
        resolve_device(typed)
    assert f"'{typed}'" in caught.value.message
    assert "cuda:0, cuda:1" in caught.value.message
    assert caught.value.hint == "--device cpu"


@pytest.mark.parametrize("typed", ["gpu", "cuda:-1", "cuda:x", "", "²", "9" * 30, "a b"])
def test_nonsense_is_a_usage_error(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_device(typed)
    assert f"'{typed}'" in caught.value.message
    assert "--device auto" in (caught.value.hint or "")


def test_dtypes_have_names() -> None:
    assert [resolve_dtype(name) for name in ("float32", "BFloat16", "float16")] == [
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ]


MODELS = """
import torch
from torch import nn

class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 1 + 2j))
        self.register_buffer("phase", torch.full((3,), 2j))
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        return self.conv(torch.fft.ifft2(torch.fft.fft2(x) * (self.weight + self.phase)[:, None, None]).real)

class Placed(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 3)

    def to(self, device):  # takes no dtype
        return super().to(device)
"""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_complex_numbers_keep_their_imaginary_parts(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "net.py").write_text(MODELS)
    module: Any = ms.load(f"{tmp_path}/net.py:Spectral", dtype=dtype).module
    assert module.weight.tolist() == [1 + 2j] * 3
    assert module.phase.tolist() == [2j] * 3
    assert module.conv.weight.dtype == module.conv.bias.dtype == getattr(torch, dtype)
    if dtype == "float32":
        record = ms.grads(module, torch.rand(2, 3, 8, 8), batch=1)
        assert record["weight"].weight_norm == pytest.approx(15**0.5)
        assert {row.name for row in ms.stats(module, torch.rand(2, 3, 8, 8)).layers} == {"conv"}
