"""Models of other libraries: trainers that are modules, factories that import, names and checkpoints of others."""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision import models

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.architecture import model_inside

X = torch.rand(1, 3, 8, 8)


class Small(nn.Module):
    def __init__(self, hidden: int = 6, in_channels: int = 3) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(in_channels, hidden, 3), nn.Linear(hidden, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv(x).mean((2, 3)))


def start(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a training was started")


def trainer(**own: Any) -> nn.Module:
    """Make a module with a model inside, and methods of its own."""
    kind = type("Trainer", (nn.Module,), {"forward": lambda self, x: self.model(x), **own})
    made = kind()
    made.model = Small()
    return made


STARTS = {
    "epochs": lambda self, epochs=10: start(),
    "nothing": lambda self: start(),
    "anything": lambda self, *args, **options: start(),
    "only keywords": lambda self, *, lr=0.1: start(),
    "name of a mode": lambda self, mode="full": start(),
}


@pytest.mark.parametrize("kind", STARTS)
def test_a_trainer_is_refused_and_not_called(kind: str) -> None:
    made = trainer(train=STARTS[kind], eval=start, _apply=start)
    with pytest.raises(CannotRunError, match="'Trainer' is a 'Trainer', whose train"):
        ms.summary(made, X)
    with pytest.raises(CannotRunError, match="layer '0' of 'Sequential' is a 'Trainer'"):
        ms.stats(nn.Sequential(made), X)


@pytest.mark.parametrize("own", [
    {"train": lambda self, mode=True: nn.Module.train(self, mode)},
    {"train": lambda self, mode: self},
    {"train": lambda self, flag=True: nn.Module.train(self, flag)},
    {"train": functools.wraps(nn.Module.train)(lambda self, *more: nn.Module.train(self, *more, **{}))},
])  # fmt: skip
def test_a_switch_of_mode_of_ones_own_makes_no_trainer(own: dict[str, Any]) -> None:
    made = trainer(**own)
    assert model_inside(made) is made


@pytest.mark.parametrize(
    "how", ["from {} import Head", "import importlib\n    Head = importlib.import_module('{}').Head"]
)
def test_what_a_factory_imports_is_not_on_meta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    name = f"parts_{abs(hash(how))}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(
        "import torch\nfrom torch import nn\nTABLE = torch.zeros(2)\nSHARED = nn.Linear(2, 2)\n"
        "class Head(nn.Conv2d):\n    anchors = torch.ones(1)\n    def __init__(self): super().__init__(3, 2, 3)\n"
    )
    (tmp_path / "makes.py").write_text(f"def head():\n    {how.format(name)}\n    return Head()\n")
    assert ms.summary(f"{tmp_path / 'makes.py'}:head", input_shape="1,3,8,8").totals.params == 56
    held = sys.modules[name]
    assert not any(t.is_meta for t in (held.TABLE, held.SHARED.weight, held.Head.anchors))
    assert held.SHARED.weight.abs().max() < 1  # initialised, which is left out of what is on meta


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: {"epoch": 3, "model": model}])
def test_layers_saved_whole_are_called_what_they_are(wrap: Any, tmp_path: Path) -> None:
    file = tmp_path / "whole.pt"
    torch.save(wrap(nn.Sequential(nn.Conv2d(3, 4, 3), models.resnet.BasicBlock(4, 4))), file)
    with pytest.raises(
        CannotRunError, match=r"of the class 'torch\.nn\.modules\.container\.Sequential'"
    ) as told:
        ms.summary(str(file), X)
    assert "FILE.py:NAME" in str(told.value.hint)
    torch.save(wrap(models.resnet.BasicBlock(4, 4)), file)
    with pytest.raises(CannotRunError, match=r"of the class 'torchvision\.models\.resnet\.BasicBlock'"):
        ms.summary(str(file), X)


@pytest.mark.parametrize(("layer", "factors", "rank"), [
    ("base_model.model.vit.layer.0.query", ("lora_A.weight", "lora_B.weight"), 8),
    ("blocks.0.qkv", ("lora_A", "lora_B"), 2),
    ("base_model.model.fc", ("lora_A.default.weight", "lora_B.default.weight"), 16),
    ("lora_unet_down", ("lora_down.weight", "lora_up.weight"), 1),
    ("base_model.model.embed", ("lora_embedding_A", "lora_embedding_B"), 3),
])  # fmt: skip
def test_a_lora_adapter_alone_is_told_from_weights(tmp_path, layer, factors, rank):
    shapes = zip(factors, ((rank, 6), (8, rank)), strict=True)
    state = {f"{layer}.{name}": torch.ones(shape) for name, shape in shapes}
    for others, is_adapter in ({}, True), ({"stem.weight": torch.ones(8, 6)}, False):
        torch.save({**state, **others}, tmp_path / "adapter.pt")
        with pytest.raises(CannotRunError) as caught:
            ms.summary(tmp_path / "adapter.pt")
        assert (f"is a LoRA adapter of rank {rank}: " in caught.value.message) == is_adapter
