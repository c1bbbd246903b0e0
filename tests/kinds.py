"""The torchvision models by kind, so that what depends on the code of a model alone is tried once for each kind.

Models of a kind are built of the same classes of layers with the same parameters and switches: they run the same
lines and differ in sizes and repetitions only. `tests/models/test_zoo.py` holds the table to that.
"""

from typing import Any

import pytest
from torch import nn

# The least of a kind, then the others.
KINDS: dict[str, tuple[str, ...]] = {
    "alexnet": (),
    "convnext_tiny": ("convnext_small", "convnext_base", "convnext_large"),
    "deeplabv3_mobilenet_v3_large": (),
    "deeplabv3_resnet50": ("deeplabv3_resnet101",),
    "densenet121": ("densenet169", "densenet201", "densenet161"),
    "efficientnet_b0": tuple(f"efficientnet_b{n}" for n in range(1, 8)),
    "efficientnet_v2_s": ("efficientnet_v2_m", "efficientnet_v2_l"),
    "fasterrcnn_mobilenet_v3_large_320_fpn": ("fasterrcnn_mobilenet_v3_large_fpn",),
    "fasterrcnn_resnet50_fpn": (),
    "fasterrcnn_resnet50_fpn_v2": (),
    "fcn_resnet50": ("fcn_resnet101",),
    "fcos_resnet50_fpn": (),
    "googlenet": (),
    "inception_v3": (),
    "keypointrcnn_resnet50_fpn": (),
    "lraspp_mobilenet_v3_large": (),
    "maskrcnn_resnet50_fpn": (),
    "maskrcnn_resnet50_fpn_v2": (),
    "maxvit_t": (),
    "mc3_18": (),
    "mnasnet0_5": ("mnasnet0_75", "mnasnet1_0", "mnasnet1_3"),
    "mobilenet_v2": (),
    "mobilenet_v3_small": ("mobilenet_v3_large",),
    "mvit_v1_b": (),
    "mvit_v2_s": (),
    "quantized_googlenet": (),
    "quantized_inception_v3": (),
    "quantized_mobilenet_v2": (),
    "quantized_mobilenet_v3_large": (),
    "quantized_resnet18": (),
    "quantized_resnet50": ("quantized_resnext101_32x8d", "quantized_resnext101_64x4d"),
    "quantized_shufflenet_v2_x0_5": tuple(f"quantized_shufflenet_v2_{x}" for x in ("x1_0", "x1_5", "x2_0")),
    "r2plus1d_18": (),
    "r3d_18": (),
    "raft_large": (),
    "raft_small": (),
    "regnet_x_400mf": tuple(f"regnet_x_{n}" for n in ("800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf")),
    "regnet_y_400mf": tuple(
        f"regnet_y_{n}" for n in ("800mf", "1_6gf", "3_2gf", "8gf", "16gf", "32gf", "128gf")
    ),
    "resnet18": ("resnet34",),
    "resnet50": (
        *("resnet101", "resnet152", "resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d"),
        *("wide_resnet50_2", "wide_resnet101_2"),
    ),
    "retinanet_resnet50_fpn": (),
    "retinanet_resnet50_fpn_v2": (),
    "s3d": (),
    "shufflenet_v2_x0_5": ("shufflenet_v2_x1_0", "shufflenet_v2_x1_5", "shufflenet_v2_x2_0"),
    "squeezenet1_1": ("squeezenet1_0",),
    "ssd300_vgg16": (),
    "ssdlite320_mobilenet_v3_large": (),
    "swin3d_t": ("swin3d_s", "swin3d_b"),
    "swin_t": ("swin_s", "swin_b"),
    "swin_v2_t": ("swin_v2_s", "swin_v2_b"),
    "vgg11": ("vgg13", "vgg16", "vgg19"),
    "vgg11_bn": ("vgg13_bn", "vgg16_bn", "vgg19_bn"),
    "vit_b_32": ("vit_b_16", "vit_l_16", "vit_l_32", "vit_h_14"),
}

# One of each way to wire layers, then one of each task; tests of the data flow and of replays try more families.
QUICK = {
    *("resnet18", "mobilenet_v3_small", "googlenet", "shufflenet_v2_x0_5"),
    *("convnext_tiny", "vit_b_32", "swin_t"),
    *("lraspp_mobilenet_v3_large", "raft_small", "r3d_18", "ssdlite320_mobilenet_v3_large"),
    *("fasterrcnn_mobilenet_v3_large_320_fpn", "quantized_mobilenet_v2"),
}
# For a test of every kind: the others are slow only because they are many.
SWEEP = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in KINDS]


def kind_of(model: nn.Module) -> frozenset[Any]:
    """Return the classes of layers in a model, each with the parameters it has and how its switches stand."""
    return frozenset(_make_of(module) for module in model.modules())


def _make_of(module: nn.Module) -> tuple[Any, ...]:
    switches = {
        name: value if isinstance(value, bool | str | None) else type(value)
        for name, value in vars(module).items()
        if not name.startswith("_")
    }
    parameters = {name: parameter is None for name, parameter in module._parameters.items()}
    return type(module), frozenset(switches.items()), frozenset(parameters.items())
