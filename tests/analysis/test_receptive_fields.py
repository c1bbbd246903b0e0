"""Receptive fields against the pixels that have a gradient, in networks that let every path through."""

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

import modelscope_cli as ms
from modelscope_cli.analysis.spatial.fields import ReceptiveFields


def evened(model):
    """Make every weight positive and of sum 1, so that no path cancels another and no sigmoid is saturated."""
    for parameter in model.parameters():
        with torch.no_grad():
            values = parameter.abs() + 0.01
            sums = values.flatten(1).sum(1) if values.ndim > 1 else values
            parameter.copy_(values / sums.view(-1, *[1] * (values.ndim - 1)))
    return model.double().eval()


@pytest.fixture
def let_through(monkeypatch):
    """Let every value pass where the real network lets only some pass: rectifiers, and the largest of a window."""

    def average(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode)

    def begin():
        monkeypatch.setattr(F, "relu", lambda x, inplace=False: x * 1)
        monkeypatch.setattr(F, "max_pool2d", average)

    return begin


def look(model, x, name, see):
    def hook(module, args, output):
        see(output)

    handle = model.get_submodule(name).register_forward_hook(hook)
    model(x)
    handle.remove()


def field_of(model, x, name):
    fields, found = ReceptiveFields(), []
    with torch.no_grad(), fields.follow((x,)):
        look(model, x, name, lambda output: found.append(fields.of(output).slimmed()))
    return found[0]


def box(field, place):
    """Return left, top, right, bottom of the pixels that an element of the first image can depend on."""
    top, bottom, left, right = (int(bound[(0, *place)]) for bound in field.bounds)
    return -left, -top, right + 1, bottom + 1


def pixels_with_gradient(model, x, name, element):
    x = x.clone().requires_grad_()
    found = []
    look(model, x, name, found.append)
    (gradient,) = torch.autograd.grad(found[0][(0, *element)], x)
    rows, columns = gradient[0].abs().sum(0).nonzero().unbind(1)
    return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1


LAYERS = [
    ("resnet18", 64, "conv1"),
    ("resnet18", 64, "maxpool"),
    ("resnet18", 96, "layer1.0.conv2"),
    ("squeezenet1_1", 64, "features.3"),
    ("densenet121", 64, "features.denseblock1"),
    ("inception_v3", 128, "Mixed_6a"),
    ("efficientnet_b0", 64, "features.1.0.block.0"),
    ("shufflenet_v2_x0_5", 64, "stage2.1"),
    ("convnext_tiny", 64, "features.1.0"),
]


@pytest.mark.parametrize(("name", "size", "layer"), LAYERS)
def test_the_field_is_where_the_gradient_is(name, size, layer, let_through):
    torch.manual_seed(0)
    more = {"init_weights": False, "aux_logits": False} if name == "inception_v3" else {}
    model = evened(torchvision.models.get_model(name, **more))
    x = torch.rand(1, 3, size, size + 16, dtype=torch.float64)
    field = field_of(model, x, layer)  # of the network as it is
    channels, height, width = field.bounds[0].shape[1:]
    let_through()
    for element in [
        (0, 0, 0),
        (channels - 1, height // 2, width // 2),
        (channels // 2, height - 1, width // 3),
    ]:
        assert box(field, element) == pixels_with_gradient(model, x, layer, element), element


def small_vit():
    return torchvision.models.VisionTransformer(64, 16, num_layers=1, num_heads=2, hidden_dim=32, mlp_dim=64)


@pytest.mark.parametrize(("make", "layer"), [
    (torchvision.models.efficientnet_b0, "features.1.0"),  # squeeze-excitation
    (torchvision.models.resnet18, "avgpool"),
    (torchvision.models.resnet18, "fc"),
    (small_vit, "encoder.layers.encoder_layer_0.ln_2"),  # behind attention
])  # fmt: skip
def test_what_is_computed_from_all_of_it_sees_the_whole_image(make, layer):
    torch.manual_seed(0)
    model, size = make().eval(), 64
    x = torch.rand(1, 3, size, size)
    field = field_of(model, x, layer)
    place = field.bounds[0].shape[1:]
    assert box(field, [side // 2 for side in place]) == (0, 0, size, size)
    assert field.largest() == (size, size)


class Window(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


KERNEL = torch.ones(1, 1, 3, 3, dtype=torch.float64)


def _two(x):
    return torch.cat([x, F.conv2d(x, KERNEL, padding=1)], 1)


FUNCTIONS = {
    "dilated": lambda x: F.conv2d(x, KERNEL, padding=2, dilation=2),
    "unpadded": lambda x: F.conv2d(x, KERNEL, stride=2),
    "transposed": lambda x: F.conv_transpose2d(x, KERNEL, stride=2, padding=1),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (5, 3)),
    "ceil": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(x, size=(20, 31), mode="bilinear", align_corners=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "bicubic, by a factor": lambda x: F.interpolate(x, scale_factor=1.7, mode="bicubic"),
    "smaller, antialiased": lambda x: F.interpolate(x, size=(5, 7), mode="bilinear", antialias=True),
    "reflected": lambda x: F.conv2d(F.pad(x, (2, 1, 1, 2), mode="reflect"), KERNEL),
    "repeated": lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), KERNEL),
    "wrapped": lambda x: F.conv2d(F.pad(x, (0, 0, 3, 0)), KERNEL)[:, :, 1:].flip(2),
    "transposed maps": lambda x: F.conv2d(x.transpose(2, 3), KERNEL, stride=(1, 2)),
    "channels last": lambda x: F.conv2d(x.permute(0, 2, 3, 1).relu().permute(0, 3, 1, 2), KERNEL),
    "tokens": lambda x: F.conv2d(x, KERNEL).flatten(2).transpose(1, 2),
    "patches": lambda x: F.unfold(x, 3, stride=2, padding=1).transpose(1, 2),
    "shuffled": lambda x: F.pixel_shuffle(F.conv2d(x, KERNEL.repeat(4, 1, 1, 1)), 2),
    "branches": lambda x: torch.cat([F.conv2d(x, KERNEL, padding=1), F.avg_pool2d(x, 7, 1, 3)], 1),
    "mean of rows": lambda x: F.conv2d(x, KERNEL).mean(3),
    "normalised": lambda x: F.layer_norm(x, x.shape[-1:]) * 2 + x.square(),
    "grouped": lambda x: F.conv2d(_two(x), KERNEL.repeat(2, 1, 1, 1), groups=2),
    "in place": lambda x: F.conv2d(x, KERNEL).mul_(2).add_(1),
    "product of rows": lambda x: F.conv2d(x, KERNEL) @ F.conv2d(x, KERNEL).mT,
    "not known": lambda x: torch.fft.fft2(x).real,
    "kernel of the image": lambda x: F.conv2d(torch.ones(1, 1, 5, 5, dtype=x.dtype), x[..., :3, :3]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_kind_of_operator(name):
    torch.manual_seed(0)
    x = torch.rand(1, 1, 14, 17, dtype=torch.float64) + 1
    model = nn.Sequential(Window(FUNCTIONS[name]))
    field = field_of(model, x, "0")
    shape = field.bounds[0].shape[1:]
    places = [torch.unravel_index(torch.tensor(n), shape) for n in range(0, shape.numel(), 7)]
    for place in [tuple(map(int, place)) for place in places]:
        left, top, right, bottom = box(field, place)
        try:
            true = pixels_with_gradient(model, x, "0", place)
        except RuntimeError:  # of padding alone: there is no such pixel
            assert right <= left or bottom <= top
            continue
        if name == "normalised":  # a gradient may happen to be zero, and the field is what could be
            assert (left, top) <= true[:2]
            assert (right, bottom) >= true[2:]
        elif name in ("not known", "kernel of the image"):
            assert (left, top, right, bottom) == (0, 0, 17, 14)
        else:
            assert (left, top, right, bottom) == true, place


def test_the_test_can_fail():
    model = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1)).double()
    field = field_of(model, torch.rand(1, 1, 8, 8, dtype=torch.float64), "0")
    assert box(field, (0, 4, 4)) == (3, 3, 6, 6) != (2, 2, 7, 7)
    assert field.largest() == (3, 3)


def test_windows_of_attention_see_their_window():
    torch.manual_seed(0)
    model = torchvision.models.swin_t().eval()
    field = field_of(model, torch.rand(1, 3, 112, 112), "features.1.0")
    assert field.largest() == (28, 28)  # 7 x 7 patches of 4 pixels
    assert box(field, (0, 0, 0)) == (0, 0, 28, 28)


def test_the_column_of_summary():
    """The size of a chain grows by (kernel - 1) times the product of the strides before it."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    record = ms.summary(model, torch.rand(1, 3, 40, 40), measure=("field",))
    fields = {row.name: row.receptive_field for row in record.layers}
    assert fields == {"": (40, 40), "0": (3, 3), "1": (4, 4), "2": (12, 12), "3": (40, 40), "4": (40, 40)}
    assert ms.summary(nn.Linear(3, 2), torch.rand(1, 3), measure=("field",)).layers[0].receptive_field is None
