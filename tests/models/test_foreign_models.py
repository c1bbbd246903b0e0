"""Models of other libraries: trainers that are modules, factories that import, names and checkpoints of others."""

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from listening import Told
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.errors import CannotRunError, ModelscopeError, UsageError
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
def test_the_model_in_a_trainer_is_looked_at_and_the_trainer_is_not_called(kind: str) -> None:
    made = trainer(train=STARTS[kind], eval=start, _apply=start)
    assert model_inside(made) is made.model
    told = Told()
    assert ms.summary(made, X, progress=told).totals.params == ms.summary(made.model, X).totals.params
    assert any("the Small inside 'Trainer'" in note for note in told.notes)


@pytest.mark.parametrize("own", [
    {"train": lambda self, mode=True: nn.Module.train(self, mode)},
    {"train": lambda self, mode: self},
    {"train": lambda self, flag=True: nn.Module.train(self, flag)},
    {"train": functools.wraps(nn.Module.train)(lambda self, *more: nn.Module.train(self, *more, **{}))},
])  # fmt: skip
def test_a_switch_of_mode_of_ones_own_makes_no_trainer(own: dict[str, Any]) -> None:
    made = trainer(**own)
    assert model_inside(made) is made


def test_a_trainer_of_several_models_is_refused_before_anything_is_called() -> None:
    several, around = trainer(train=start), nn.Sequential(trainer(train=start))
    several.other = Small()
    with pytest.raises(CannotRunError, match="its models are model, other"):
        ms.stats(several, X)
    with pytest.raises(CannotRunError, match="layer '0' of 'Sequential' is 'Trainer'"):
        ms.stats(around, X)


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


def hint_of(model: str, **keywords: Any) -> str:
    with pytest.raises(ModelscopeError) as caught:
        ms.load(model, **keywords)
    return caught.value.hint or ""


@pytest.mark.parametrize(("state", "hint"), [
    (Small(hidden=9), "model_arg='hidden=9'"),
    (Small(in_channels=1), "model_arg='in_channels=1'"),
    (Small(hidden=5, in_channels=4), "model_arg='in_channels=4'"),
])  # fmt: skip
def test_a_checkpoint_of_other_shapes_says_what_it_was_built_with(
    tmp_path: Path, state: nn.Module, hint: str
) -> None:
    torch.save(state.state_dict(), tmp_path / "c.pt")
    said = hint_of(f"{__file__}:Small", checkpoint=tmp_path / "c.pt")
    assert hint in said or hint.split("'")[1] in said
    assert "strict" not in said


def test_timm_built_for_other_channels_and_sizes_is_recognised(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    for n, (name, own) in enumerate(
        [
            ("resnet10t", {"in_chans": 1}),
            ("vit_tiny_patch16_224", {"img_size": 64}),
            ("resnet18", {"in_chans": 4}),
        ]
    ):
        path = tmp_path / f"{n}.pth"
        torch.save(timm.create_model(name, num_classes=3, **own).state_dict(), path)
        loaded = ms.load(path)
        assert loaded.info.name.startswith("timm:")
        assert loaded.module.num_classes == 3


@pytest.mark.parametrize(("typed", "said"), [
    ("yolov8n", "yolov8n.yaml"),
    ("yolov8n.pt", "yolov8n.yaml"),
    ("ViT-B-32", "open_clip:ViT-B-32"),
    ("torch.hub:facebookresearch/dinov2", "torch.hub:load"),
    ("torchvision:resnet18", "resnet18"),
    ("missing.json", "ls ."),
    ("model.onnx", "ls ."),
])  # fmt: skip
def test_names_of_other_libraries_are_answered_with_a_line_for_them(typed: str, said: str) -> None:
    assert said in hint_of(typed)


@pytest.mark.parametrize("typed", ["smp:Unet", "open_clip:RN50", "yolo11n.yaml"])
def test_a_library_that_is_not_installed_is_named(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelscope_cli.models.hubs.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="which is not installed") as caught:
        ms.summary(typed)
    assert (caught.value.hint or "").startswith("pip install ")


def test_models_of_segmentation_models_pytorch_by_name() -> None:
    smp = pytest.importorskip("segmentation_models_pytorch")
    told = Told()
    record = ms.summary("smp:Unet?encoder_name=mobilenet_v2", num_classes=4, progress=told)
    net = smp.Unet("mobilenet_v2", encoder_weights=None, classes=4)
    assert record.totals.params == sum(p.numel() for p in net.parameters())
    assert any("encoder_weights=None" in note and "random" in note for note in told.notes)


def test_models_of_open_clip_by_name() -> None:
    open_clip = pytest.importorskip("open_clip")
    record = ms.summary("open_clip:ViT-S-32-alt")
    net = open_clip.create_model("ViT-S-32-alt")
    assert record.totals.params == sum(p.numel() for p in net.parameters())


def test_models_of_ultralytics_by_name() -> None:
    pytest.importorskip("ultralytics")
    opened = Image.open
    record = ms.summary("yolo11n-seg.yaml", torch.rand(1, 3, 64, 64), num_classes=3)
    assert record.totals.params == 2_843_193
    assert Image.open is opened  # importing the library replaces it


def test_arguments_behind_a_name() -> None:
    """`?in_chans=1` is `--model-arg in_chans=1`, which wins."""
    pytest.importorskip("timm")
    assert ms.summary("timm:test_resnet?in_chans=1").run.input.shape[0][1] == 1
    assert ms.summary("timm:test_resnet?in_chans=1", model_arg={"in_chans": 4}).run.input.shape[0][1] == 4
