"""What a module says of itself: size, preparation and labels, by a cfg of timm's kind. Needs no timm."""

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

import modelscope_cli as ms
from modelscope_cli.inputs.model_config import (
    configured_labels,
    configured_preset,
    configured_shape,
    natural_shapes,
)
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest

CFG = {
    "architecture": "tiny",
    "tag": "of_the_test",
    "input_size": (3, 40, 40),
    "interpolation": "nearest",
    "crop_pct": 0.8,
    "mean": (0.1, 0.2, 0.3),
    "std": (0.5, 0.6, 0.7),
    "num_classes": 3,
    "label_names": ("cat", "dog", "owl"),
}


class Tiny(nn.Module):
    """A classifier that carries a cfg, as a model of timm does."""

    def __init__(self, name: str = "pretrained_cfg", **changes: object) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        setattr(self, name, {**CFG, **changes})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).mean((2, 3))


@pytest.mark.parametrize("name", ["pretrained_cfg", "default_cfg"])
def test_the_size_is_the_cfgs(name: str) -> None:
    assert natural_shapes("custom", None, Tiny(name), 2) == ((2, 3, 40, 40),)
    assert ms.summary(Tiny(name)).run.input.shape == ((1, 3, 40, 40),)


@pytest.mark.parametrize("cfg", [None, {}, "resnet", {"input_size": None}, {"input_size": "3,4,5"}])
def test_a_cfg_of_another_kind_says_nothing(cfg: object) -> None:
    module = Tiny()
    module.pretrained_cfg = cfg
    assert configured_shape(module) is configured_preset(module) is configured_labels(module) is None


def test_a_cfg_with_values_of_another_kind_says_nothing_of_images() -> None:
    assert configured_preset(Tiny(interpolation="by hand")) is None


def test_an_image_is_prepared_as_the_cfg_says(tmp_path: Path) -> None:
    pixels = torch.randint(0, 256, (60, 50, 3), dtype=torch.uint8)
    image = Image.fromarray(pixels.numpy())
    # Short side to floor(40 / 0.8) = 50, which it is, then the centre of 40 x 40.
    expected = (pixels[10:50, 5:45].permute(2, 0, 1) / 255 - torch.tensor(CFG["mean"])[:, None, None]) / (
        torch.tensor(CFG["std"])[:, None, None]
    )
    plan = plan_preprocessing(InputRequest(), "custom", configured_preset(Tiny()), Tiny())
    assert torch.equal(plan.apply(image, "x"), expected)
    pixels_again = (expected * torch.tensor(CFG["std"])[:, None, None]).add(
        torch.tensor(CFG["mean"])[:, None, None]
    )
    assert torch.allclose(plan.normalize(pixels_again[None])[0], expected, atol=1e-5)


def test_a_border_is_the_mean_colour() -> None:
    preset = configured_preset(Tiny(crop_mode="border", crop_pct=1.0))
    assert preset is not None
    framed = preset.frame(Image.new("RGB", (80, 20), "white"))
    assert framed.size == (40, 40)
    assert framed.getpixel((20, 0)) == (26, 51, 76)
    assert framed.getpixel((20, 20)) == (255, 255, 255)


def test_labels_are_the_cfgs_and_only_where_there_is_one_for_each_class() -> None:
    assert configured_labels(Tiny()) == ("cat", "dog", "owl")
    assert configured_labels(Tiny(label_descriptions={"cat": "a cat"})) == ("a cat", "dog", "owl")
    assert configured_labels(Tiny(num_classes=4)) is None
