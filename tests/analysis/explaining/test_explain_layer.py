"""Which layer is found: against a table made by hand for torchvision, and timm's own features."""

import pytest
import torch
from models_to_explain import Pooled, drawn, image, scored
from torch import nn
from torchvision.models import get_model

from modelscope_cli.analysis.explaining.methods import METHODS
from modelscope_cli.analysis.explaining.scored import UnfitError
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.architecture import on_meta

# The tensor that enters the global pooling, by the way that each model is wired.
POOLED = {
    "resnet18": "layer4",
    "densenet121": "relu(features)",
    "squeezenet1_0": "features",
    "regnet_y_400mf": "trunk_output",
    "convnext_tiny": "features",
    "swin_t": "permute",
}


@pytest.mark.parametrize("name", POOLED)
def test_the_tensor_that_enters_the_pooling_is_found(name):
    """Without values, which a table of shapes needs none of."""
    with on_meta():
        model = get_model(name, weights=None).eval()
    with scored(model) as question:
        layer = question.find(question, torch.zeros(1, 3, 224, 224, device="meta"))
    assert layer.name == POOLED[name]
    assert "the last feature map" in layer.why


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
        assert "exactly zero at all 9" in layer.why
        assert METHODS["hirescam"].explain(question, given).cells.any()


def test_a_map_of_zeros_is_an_error_that_says_why(vit):
    with (
        scored(vit, layer=("encoder.ln",)) as question,
        pytest.raises(UnfitError, match="only on the class token"),
    ):
        METHODS["hirescam"].explain(question, image(side=96))


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_scripted_model_is_refused_in_words():
    model = torch.jit.script(drawn(Pooled()))
    with pytest.raises(CannotRunError, match="is TorchScript"), scored(model) as question:
        question.find(question, image())
