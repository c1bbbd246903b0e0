"""The oracle: torchvision's published multiply-adds hold at the input size they were computed for.

A handful here; all 139 weight entries stand in tests/benchmarks.
"""

import pytest
import torch
import torchvision.models as tv
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from modelscope_cli.inputs.default_shape import natural_shapes


def giga_multiply_adds(model: nn.Module, shapes: tuple[tuple[int, ...], ...]) -> float:
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model.eval()(*[torch.empty(shape, device="meta") for shape in shapes])
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    return counter.get_total_flops() / 2e9


@pytest.mark.parametrize(
    ("name", "family", "options"),
    [
        ("resnet34", "classification", {}),
        ("efficientnet_b7", "classification", {}),
        ("vit_b_16", "classification", {}),
        ("lraspp_mobilenet_v3_large", "segmentation", {"weights_backbone": None}),
        ("mvit_v2_s", "video", {}),
        ("s3d", "video", {}),
        ("raft_small", "optical_flow", {}),
    ],
)
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


@pytest.mark.parametrize(
    ("first", "shape"),
    [
        (nn.Conv2d(3, 4, 3), (2, 3, 224, 224)),
        (nn.Conv2d(1, 4, 3), (2, 1, 224, 224)),
        (nn.Conv2d(13, 4, 3), (2, 13, 224, 224)),
        (nn.Linear(20, 4), (2, 20)),
        (nn.Conv3d(1, 4, 3), (2, 1, 16, 112, 112)),
        (nn.LazyConv2d(4, 3), (2, 3, 224, 224)),
        (nn.ReLU(), (2, 7)),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_custom_model_is_given_what_its_first_layer_takes(first: nn.Module, shape: tuple[int, ...]) -> None:
    assert natural_shapes("custom", None, nn.Sequential(first, nn.Linear(7, 7)), 2) == (shape,)


def test_without_a_module_it_is_a_colour_picture() -> None:
    assert natural_shapes("custom", None, None, 1) == ((1, 3, 224, 224),)
