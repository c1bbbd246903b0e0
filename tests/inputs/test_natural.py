"""The oracle: torchvision's published multiply-adds hold at the input size they were computed for.

A handful here; all 139 weight entries stand in tests/benchmarks.
"""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import torchvision.models as tv
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from modelscope_cli.inputs.model_config import natural_shapes
from modelscope_cli.inputs.preprocessing_choice import plan_preprocessing
from modelscope_cli.inputs.request import InputRequest


def giga_multiply_adds(model: nn.Module, shapes: tuple[tuple[int, ...], ...]) -> float:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(*[torch.empty(shape, device="meta") for shape in shapes])
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize(("name", "family", "options"), [
    ("resnet34", "classification", {}),
    ("lraspp_mobilenet_v3_large", "segmentation", {"weights_backbone": None}),
    *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        ("efficientnet_b7", "classification", {}),
        ("vit_b_16", "classification", {}),
        ("mvit_v2_s", "video", {}),
        ("s3d", "video", {}),
        ("raft_small", "optical_flow", {}),
    )),
])  # fmt: skip
def test_published_multiply_adds_hold_at_the_natural_size(
    name: str, family: str, options: dict[str, None]
) -> None:
    with torch.device("meta"):
        model = tv.get_model(name, weights=None, **options)
    for weights in tv.get_model_weights(name):
        if weights.meta.get("min_size", (1, 1))[0] > 224:
            continue  # a vision transformer for larger pictures is another model
        shapes = natural_shapes(family, weights.transforms(), model, 1)
        assert round(giga_multiply_adds(model, shapes), 3) == weights.meta["_ops"]


def test_detection_takes_a_list_of_images_of_the_size_it_resizes_to() -> None:
    with torch.device("meta"):
        ssd = tv.detection.ssd300_vgg16(weights=None, weights_backbone=None)
        retina = tv.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None)
    assert natural_shapes("detection", None, ssd, 2) == ((3, 300, 300), (3, 300, 300))
    assert natural_shapes("detection", None, retina, 1) == ((3, 800, 800),)


@pytest.mark.parametrize(("first", "shape"), [
    (nn.Conv2d(3, 4, 3), (2, 3, 224, 224)),
    (nn.Conv2d(1, 4, 3), (2, 1, 224, 224)),
    (nn.Conv2d(13, 4, 3), (2, 13, 224, 224)),
    (nn.Linear(20, 4), (2, 20)),
    (nn.Conv3d(1, 4, 3), (2, 1, 16, 112, 112)),
    (nn.LazyConv2d(4, 3), (2, 3, 224, 224)),
    (nn.ReLU(), (2, 7)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_custom_model_is_given_what_its_first_layer_takes(first: nn.Module, shape: tuple[int, ...]) -> None:
    assert natural_shapes("custom", None, nn.Sequential(first, nn.Linear(7, 7)), 2) == (shape,)


class Stem(nn.Module):
    """Something in front of a first layer, as a function."""

    def __init__(self, before: Callable[[Tensor], Tensor], first: nn.Module) -> None:
        super().__init__()
        self.before, self.first = before, first

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.before(x))


STEMS = {
    "space to depth": (nn.PixelUnshuffle(2), nn.Conv2d(12, 4, 3), 3),
    "gray of colours": (lambda x: 0.3 * x[:, :1] + 0.6 * x[:, 1:2] + 0.1 * x[:, 2:3], nn.Conv2d(1, 4, 3), 3),
    "mean of channels": (lambda x: x.mean(1, keepdim=True), nn.Conv2d(1, 4, 3), 3),
    "a fourth channel": (lambda x: torch.cat([x, x[:, :1]], 1), nn.Conv2d(4, 4, 3), 3),
    "gray as colours": (lambda x: x.repeat(1, 3, 1, 1), nn.Conv2d(3, 4, 3), 1),
    "patches": (lambda x: F.unfold(x, 16, stride=16).mT, nn.Linear(768, 4), 3),
    "thirteen bands": (nn.Identity(), nn.Conv2d(13, 4, 3), 13),
}


@pytest.mark.parametrize("name", STEMS)
def test_what_stands_before_the_first_layer_counts(name: str) -> None:
    before, first, n_channels = STEMS[name]
    stem = Stem(before, first)
    assert natural_shapes("custom", None, stem, 1) == ((1, n_channels, 224, 224),)
    if n_channels in (1, 3):
        plan = plan_preprocessing(InputRequest(), "custom", None, stem)
        assert plan.mode == {1: "L", 3: "RGB"}[n_channels]
        assert len(plan.mean) == n_channels


def test_a_linear_layer_that_takes_a_side_of_an_image_takes_features() -> None:
    assert natural_shapes("custom", None, nn.Linear(224, 4), 1) == ((1, 224),)


def test_without_a_module_it_is_a_colour_picture() -> None:
    assert natural_shapes("custom", None, None, 1) == ((1, 3, 224, 224),)
