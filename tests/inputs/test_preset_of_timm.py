"""The oracle: images are prepared as `timm.data.create_transform` does it, bit for bit."""

from typing import Any

import pytest
import torch
from PIL import Image

from modelscope_cli.inputs.model_config import configured_labels, configured_preset, configured_shape
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest

timm = pytest.importorskip("timm")
_WHAT = ("interpolation", "crop_mode")


def published() -> list[Any]:
    """Return one model for each way of preparing images that timm knows, but for the largest."""
    found: dict[tuple[Any, ...], str] = {}
    for name in timm.list_models(include_tags=True):
        cfg = timm.models.get_pretrained_cfg(name)
        if cfg is not None and cfg.input_size[0] == 3 and max(cfg.input_size) <= 288:
            found.setdefault(tuple(getattr(cfg, key) for key in _WHAT), name)
    return list(found.values())


@pytest.fixture(scope="module")
def images() -> list[Image.Image]:
    generator = torch.Generator().manual_seed(0)
    sizes = [(37, 53), (300, 301), (240, 320), (333, 141), (20, 400), (601, 30)]
    return [
        Image.fromarray(torch.randint(0, 256, (*size, 3), dtype=torch.uint8, generator=generator).numpy())
        for size in sizes
    ]


class Carrier(torch.nn.Module):
    """Nothing but a cfg."""

    def __init__(self, cfg: dict[str, Any]) -> None:
        super().__init__()
        self.pretrained_cfg = cfg


@pytest.mark.parametrize("name", published())
def test_it_is_what_timm_does(name: str, images: list[Image.Image]) -> None:
    module = Carrier(timm.models.get_pretrained_cfg(name).to_dict())
    config = timm.data.resolve_model_data_config(module)
    theirs = timm.data.create_transform(**config, is_training=False)
    ours = plan_preprocessing(InputRequest(), "custom", configured_preset(module), module)
    for image in images:
        assert torch.equal(ours.apply(image, "x"), theirs(image)), image.size


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(3, 48, 80), (3, 80, 48)])
def test_so_it_is_where_the_sides_differ(mode: str, size: Any, images: list[Image.Image]) -> None:
    module = Carrier({"input_size": size, "crop_mode": mode, "crop_pct": 0.9})
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(module), is_training=False)
    ours = plan_preprocessing(InputRequest(), "custom", configured_preset(module), module)
    for image in images:
        assert torch.equal(ours.apply(image, "x"), theirs(image)), image.size


@pytest.mark.parametrize(("arguments", "shape"), [
    ({}, (3, 160, 160)),
    ({"img_size": 96}, (3, 96, 96)),
    ({"img_size": (64, 96)}, (3, 64, 96)),
    ({"in_chans": 1}, (1, 160, 160)),
])  # fmt: skip
def test_the_size_is_the_one_it_was_built_for(arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    module = timm.create_model("test_vit", **arguments).eval()
    assert configured_shape(module) == shape
    assert module(torch.rand(1, *shape)).shape == (1, 1000)


@pytest.mark.parametrize("n_classes", [1000, 11221, 11821, 21841, 21842, 21843])
def test_labels_are_those_of_the_imagenet_with_as_many_classes(n_classes: int) -> None:
    labels = configured_labels(timm.create_model("test_vit", num_classes=n_classes))
    subset = timm.data.infer_imagenet_subset({"num_classes": n_classes})
    assert labels is not None
    assert labels == tuple(timm.data.ImageNetInfo(subset).label_descriptions())
    assert len(labels) == n_classes
