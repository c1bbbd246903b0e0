"""Which layer is found: against a table made by hand for torchvision, and timm's own features."""

import contextlib
import math

import pytest
import torch
from kinds import KINDS
from models_to_explain import Pooled, drawn, image, scored
from torch import nn
from torchvision.models import get_model, list_models

from modelscope_cli.analysis.explaining.methods import METHODS
from modelscope_cli.analysis.explaining.scored import UnfitError
from modelscope_cli.models.architecture import on_meta

# The tensor that enters the global pooling of each family, or the place that sees all patches for the last time.
TORCHVISION = {
    "alexnet": "features",
    "convnext": "features",
    "densenet": "relu(features)",
    "efficientnet": "features",
    "googlenet": "inception5b",
    "inception": "Mixed_7c",
    "maxvit": "blocks.3",
    "mnasnet": "layers",
    "mobilenet": "features",
    "regnet": "trunk_output",
    "resne": "layer4",
    "shufflenet": "conv5",
    "squeezenet": "features",
    "swin": "permute",
    "vgg": "features",
    "wide": "layer4",
}
QUICK = ("resnet18", "densenet121", "squeezenet1_0", "mobilenet_v3_small", "regnet_y_400mf", "convnext_tiny")


def layer_of(name):
    """Find the layer of a model without values, which a table of shapes needs none of."""
    slow = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
    has_tables = name.startswith("swin_v2")  # of numbers, which it makes outside of meta
    with contextlib.nullcontext() if has_tables else on_meta():
        model = get_model(name, weights=None, **slow).eval()
    size = 299 if name == "inception_v3" else 224
    given = torch.zeros(1, 3, size, size, device="cpu" if has_tables else "meta")
    with scored(model) as question:
        return question.find(question, given)


@pytest.mark.parametrize("name", QUICK)
def test_the_tensor_that_enters_the_pooling_is_found(name):
    family = next(key for key in TORCHVISION if name.startswith(key))
    layer = layer_of(name)
    assert layer.name == TORCHVISION[family]
    assert "the last feature map before the score" in layer.why


@pytest.mark.slow
def test_it_is_found_in_every_kind_of_torchvision_classifier():
    import torchvision.models as zoo

    wrong = {}
    for name in KINDS.keys() & set(list_models(module=zoo)):
        if name.startswith("vit"):
            continue  # needs values: see below
        family = next(key for key in TORCHVISION if name.startswith(key))
        found = layer_of(name).name
        if found != TORCHVISION[family]:
            wrong[name] = found
    assert wrong == {}


@pytest.fixture(scope="module")
def vit():
    model = get_model("vit_b_32", weights=None, image_size=96, num_classes=5)
    nn.init.normal_(model.heads.head.weight)
    return model.eval().requires_grad_(False)


def test_of_a_class_token_it_is_the_last_norm_that_a_gradient_comes_to(vit):
    given = image(side=96)
    with scored(vit) as question:
        layer = question.find(question, given)
        assert layer.name == "encoder.layers.encoder_layer_11.ln_1"
        assert layer.layout.grid == (3, 3)
        assert layer.layout.prefix == 1
        assert layer.is_behind_token
        assert "exactly zero at all 9" in layer.why
        assert METHODS["hirescam"].explain(question, given).cells.any()


def test_a_map_of_zeros_is_an_error_that_says_why(vit):
    with (
        scored(vit, layer=("encoder.ln",)) as question,
        pytest.raises(UnfitError, match="only on the class token"),
    ):
        METHODS["hirescam"].explain(question, image(side=96))


def test_a_head_of_zeros_is_an_error_of_its_own():
    model = drawn(Pooled())
    nn.init.zeros_(model.head.weight)
    with scored(model) as question, pytest.raises(UnfitError, match="exactly zero everywhere at 'features'"):
        METHODS["gradcam"].explain(question, image())


class Ways(nn.Module):
    """The same network with its tail written in another way."""

    def __init__(self, tail, channels=12):
        super().__init__()
        self.features, self.tail, self.head = Pooled().features, tail, nn.Linear(channels, 3)

    def forward(self, x):
        return self.head(self.tail(self.features(x)))


def last_in_place(x):
    x = x - 0.1
    return torch.relu_(x).mean((2, 3))


WAYS = {
    "mean": (lambda x: x.mean((2, 3)), "features"),
    "mean of tokens": (lambda x: x.flatten(2).transpose(1, 2).mean(1), "transpose(flatten(features))"),
    "channels last": (lambda x: x.permute(0, 2, 3, 1).mean((1, 2)), "permute(features)"),
    "generalised mean": (lambda x: x.clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3), "pow(clamp(features))"),
    "largest": (lambda x: x.amax((2, 3)), "features"),
    "with a skip": (lambda x: (x + torch.sigmoid(x)).mean((2, 3)), "add(features)"),
    "gated by its mean": (lambda x: (x * x.mean((2, 3), keepdim=True)).mean((2, 3)), "mul(features)"),
    "in place": (last_in_place, "relu(sub(features))"),
    "one token": (lambda x: x.flatten(2)[:, :, 0], "flatten(features)"),
    "in parts": (lambda x: torch.cat([part.mean((2, 3)) for part in x.chunk(3, 1)], 1), "features"),
}


@pytest.mark.parametrize("way", WAYS)
def test_however_the_tail_is_written_the_last_tensor_with_places_is_found(way):
    tail, name = WAYS[way]
    model = Ways(nn.Identity())
    model.tail.forward = tail
    drawn(model)
    given = image()
    with scored(model) as question:
        layer = question.find(question, given)
        assert layer.name == name
        assert layer.layout.grid == (8, 8)
        # What the score is made of is all there: the activation alone gives the score again.
        seen = question.at(layer, given)
        assert float(seen.score) == pytest.approx(float(model(given)[0, 0]), rel=1e-5)
        assert seen.gradient.any()


def test_a_wide_image_has_a_wide_grid():
    with scored(drawn(Pooled())) as question:
        assert question.find(question, torch.randn(1, 3, 32, 48)).layout.grid == (8, 12)


def test_another_layer_can_be_asked_for():
    with scored(drawn(Pooled()), layer=("features.1",)) as question:
        layer = question.find(question, image())
    assert (layer.name, layer.layout.grid, layer.why) == ("features.1", (16, 16), "asked for")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_model_is_refused_in_words():
    model = torch.jit.script(drawn(Pooled()))
    with scored(model) as question, pytest.raises(UnfitError, match="compiled, scripted"):
        question.find(question, image())


FAMILIES = {
    # NCHW, NHWC, tokens without and with prefixes, class token, mean of patches: timm's features are what is found.
    "resnet10t": "features",
    "swin_tiny_patch4_window7_224": "features",
    "mixer_s32_224": "features",
    "vit_tiny_patch16_224": "blocks.11.norm1",
    "deit_tiny_distilled_patch16_224": "blocks.11.norm1",
    "vit_small_patch14_reg4_dinov2": "blocks.11.norm1",
    "beit_base_patch16_224": "features",
    "cait_xxs24_224": "blocks",
    "pvt_v2_b0": "features",
    "convnext_atto": "features",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_timm_agrees(name):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    how = {"img_size": 224} if "dinov2" in name else {}
    model = timm.create_model(name, num_classes=5, **how).eval().requires_grad_(False)
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    given = image(side=model.pretrained_cfg["input_size"][-1] if not how else 224)
    with scored(model) as question:
        layer = question.find(question, given)
        maps = layer.layout.maps(question.at(layer, given).activation)
    if FAMILIES[name] != "features":
        assert layer.name == FAMILIES[name]
        return
    features = model.forward_features(given)
    if features.ndim == 3:
        tokens = features[:, -math.prod(layer.layout.grid) :].transpose(1, 2)
        features = tokens.unflatten(2, layer.layout.grid)
    elif features.shape != maps.shape:
        features = features.permute(0, 3, 1, 2)
    assert torch.allclose(maps, features, atol=1e-4)
