from pathlib import Path
from typing import Any

import pytest
import torch

import modelscope_cli as ms
from modelscope_cli.devices import resolve_device
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.models.load import resolve_dtype


def has(monkeypatch: pytest.MonkeyPatch, kind: str | None, n: int = 1) -> None:
    """Let torch say that the machine has so many accelerators of a kind."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: kind is not None)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind or "cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: n)


def test_a_device_that_is_not_here_is_called_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, None)
    for typed in ("gpu", "GPU", "cuda"):
        with pytest.raises(CannotRunError, match=f"no device '{typed}' here"):
            resolve_device(typed)


def test_auto_without_an_accelerator_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, None)
    device, note = resolve_device("auto")
    assert device == torch.device("cpu")
    assert note is None


@pytest.mark.parametrize("kind", ["cuda", "mps", "xpu", "hpu"])
def test_auto_is_the_accelerator_of_the_machine(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    has(monkeypatch, kind)
    assert resolve_device("AUTO") == (
        torch.device(f"{kind}:0"),
        f"device: {kind}:0 (auto; the accelerator of this machine)",
    )


@pytest.mark.parametrize(("rank", "device"), [("0", "cuda:0"), ("1", "cuda:1"), ("2", "cuda:0")])
def test_each_process_takes_an_accelerator_of_its_own(
    monkeypatch: pytest.MonkeyPatch, rank: str, device: str
) -> None:
    has(monkeypatch, "cuda", 2)
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "3"}.items():
        monkeypatch.setenv(name, value)
    assert resolve_device("auto")[0] == torch.device(device)


@pytest.mark.parametrize(("kind", "typed", "meant"), [
    ("cuda", "0", "cuda:0"),
    ("cuda", "1", "cuda:1"),
    ("xpu", "1", "xpu:1"),
    ("cuda", "cuda", "cuda"),
    ("cuda", "CUDA:1", "cuda:1"),
    ("mps", "mps", "mps"),
    ("cuda", "cpu", "cpu"),
    ("cuda", "cpu:0", "cpu:0"),
])  # fmt: skip
def test_explicit_device_is_obeyed_without_a_note(
    monkeypatch: pytest.MonkeyPatch, kind: str, typed: str, meant: str
) -> None:
    has(monkeypatch, kind, 2)
    assert resolve_device(typed) == (torch.device(meant), None)


@pytest.mark.parametrize("typed", ["2", "cuda:7", "cpu:1", "meta", "vulkan", "xpu:9"])
def test_device_that_is_not_here_lists_those_that_are(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    has(monkeypatch, "cuda", 2)
    with pytest.raises(CannotRunError) as caught:
        resolve_device(typed)
    assert f"'{typed}'" in caught.value.message
    assert "cuda:0, cuda:1" in caught.value.message
    assert caught.value.hint == "--device cpu"


@pytest.mark.parametrize("typed", ["cuda:-1", "cuda:x", "", "²", "9" * 30, "a b"])
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
