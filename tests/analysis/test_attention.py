"""Attention, against what torch, timm and transformers give themselves, NumPy, and its own laws."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from tolerance import A_NETWORK, assert_close
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from modelscope_cli.analysis.activations.attention import AttentionCall, AttentionWatch, Heads, by_head
from modelscope_cli.analysis.activations.featuremaps import capture_attention
from modelscope_cli.analysis.activations.maps import EVENLY
from modelscope_cli.analysis.spatial.cells import Cells, nowhere
from modelscope_cli.hooks.selection import Selection, select
from modelscope_cli.hooks.session import ForwardError


def seen_in(model: nn.Module, x: Tensor, *layers: str) -> list[AttentionCall]:
    """Return every attention with its whole weights."""
    watch = AttentionWatch(select(model, layers, (), (x,)), lambda heads: heads)
    watch.run(model.eval(), (x,))
    return watch.seen


def vit(**options: int) -> nn.Module:
    torch.manual_seed(0)
    return torchvision.models.VisionTransformer(32, 8, 2, 2, 16, 32, num_classes=3, **options).eval()


def swin(stage: int = 1) -> nn.Module:
    torch.manual_seed(0)
    depths, heads = ([2] * stage, [2] * stage)
    return torchvision.models.SwinTransformer([4, 4], 8, depths, heads, [4, 4], num_classes=3).eval()


class Sequence(nn.Module):
    """Patches through an encoder of torch's own, which has a fast path that calls no layer inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1)


class Own(nn.Module):
    """Attention as a person writes it: one function, a mask, a scale of its own."""

    def __init__(self, scale: float | None = None, is_masked: bool = False, is_fused: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.qkv = nn.Conv2d(3, 8, 8, 8), nn.Linear(8, 24)
        self.scale, self.is_masked, self.is_fused = scale, is_masked, is_fused

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).mT
        n, length, _ = tokens.shape
        self.q, self.k, v = self.qkv(tokens).view(n, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        self.mask = torch.ones(length, length, dtype=torch.bool).tril() if self.is_masked else None
        if self.is_fused:
            return F.scaled_dot_product_attention(self.q, self.k, v, self.mask, scale=self.scale).sum((1, 2))
        scores = self.q @ self.k.mT * (self.scale or 0.5)
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -math.inf)
        return (scores.softmax(-1) @ v).sum((1, 2))


def by_numpy(model: Own, x: Tensor) -> Tensor:
    model(x)
    q, k = model.q.detach().double().numpy(), model.k.detach().double().numpy()
    scores = q @ k.swapaxes(-1, -2) * (model.scale or q.shape[-1] ** -0.5)
    if model.mask is not None:
        scores = np.where(model.mask.numpy(), scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return torch.from_numpy(powers / powers.sum(-1, keepdims=True)).float()


@pytest.mark.parametrize("is_fused", [True, False])
@pytest.mark.parametrize("is_masked", [True, False])
@pytest.mark.parametrize("scale", [None, 1.7])
def test_weights_of_a_function_are_those_of_numpy(scale, is_masked, is_fused):
    model, x = Own(scale, is_masked, is_fused), torch.randn(2, 3, 32, 48)
    (seen,) = seen_in(model, x)
    assert_close(seen.kept.weights, by_numpy(model, x), A_NETWORK)
    assert (seen.call.name, seen.output) == ("", "attention")
    assert seen.kept.key_grid == (4, 6)


def test_weights_of_torch_are_what_it_gives_when_asked():
    model, x, truth = vit(), torch.randn(2, 3, 32, 32), []
    seen = seen_in(model, x)
    for block in model.encoder.layers:
        block.self_attention.register_forward_pre_hook(
            lambda _, args, kwargs: (args, {**kwargs, "need_weights": True, "average_attn_weights": False}),
            with_kwargs=True,
        )
        block.self_attention.register_forward_hook(lambda _, args, output: truth.append(output[1]))
    model(x)
    assert [one.call.name for one in seen] == [
        f"encoder.layers.encoder_layer_{n}.self_attention" for n in (0, 1)
    ]
    for one, weights in zip(seen, truth, strict=True):
        assert_close(one.kept.weights, weights.detach(), A_NETWORK)


def test_only_the_attention_of_the_class_token_is_shown():
    model, x = vit(), torch.randn(1, 3, 32, 32)
    first, _ = seen_in(model, x)
    exhibits, _ = capture_attention(model, (x,), Selection(), choice=EVENLY)
    assert_close(exhibits[0].maps, first.kept.weights[0, :, 0, 1:].view(2, 4, 4))
    record = exhibits[0].record
    assert (record.kind, record.channels, record.shape) == ("attention", 2, (2, 17, 17))
    assert record.note == "attention of the class token (token 0), without 1 extra token"


def test_without_a_class_token_a_map_is_what_each_place_receives():
    model, x = Sequence().eval(), torch.randn(1, 3, 32, 48)
    first, _ = seen_in(model, x)
    exhibits, _ = capture_attention(model, (x,), Selection(), choice=EVENLY)
    assert exhibits[0].record.name == "encoder.layers.0.self_attn"
    assert_close(exhibits[0].maps, first.kept.weights[0].mean(1).view(2, 4, 6))
    assert exhibits[0].record.note == "attention received, mean over the queries"
    assert_close(exhibits[0].maps.sum((1, 2)), torch.ones(2))


class Softmaxes(TorchFunctionMode):
    """Keeps what `F.softmax` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Tensor] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is F.softmax:
            self.kept.append(result.detach())
        return result


def test_windows_of_heads_are_put_together():
    model, x = swin(), torch.randn(1, 3, 32, 48)
    with torch.no_grad(), Softmaxes() as truth:
        model(x)
    exhibits, _ = capture_attention(model, (x,), Selection(), choice=EVENLY)
    for exhibit, weights, shift in zip(exhibits, truth.kept, (0, 2), strict=True):
        windows = weights.mean(2).view(2, 3, 2, 4, 4)  # of 8 x 12 patches
        laid = windows.permute(2, 0, 3, 1, 4).reshape(2, 8, 12).roll((shift, shift), (1, 2))
        assert_close(exhibit.maps, laid)
        assert "assembled from 6 windows" in exhibit.record.note


MODELS = {
    "vit": (vit, (32, 32)),
    "swin": (lambda: swin(2), (40, 56)),
    "encoder": (Sequence, (32, 48)),
    "own": (lambda: Own(is_masked=True), (32, 48)),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_sum_to_one(name):
    make, size = MODELS[name]
    model, x = make(), torch.randn(2, 3, *size)
    seen = seen_in(model, x)
    assert seen
    for one in seen:
        assert one.kept.weights.ndim == 4
        assert one.kept.weights.shape[1] == 2
        assert_close(one.kept.weights.sum(-1), torch.ones_like(one.kept.weights[..., 0]))


def test_heads_without_places_are_distinguished_from_images():
    weights = torch.randn(6, 5, 7).softmax(-1)
    cells = nowhere(weights.shape)
    heads = by_head(weights, -1, cells, cells, n_images=3)
    assert torch.equal(heads.weights, weights.view(3, 2, 5, 7))
    assert by_head(weights, 0, cells, cells, n_images=3) is None
    turned = by_head(weights.mT, 1, nowhere(weights.mT.shape), nowhere(weights.mT.shape), n_images=3)
    assert torch.equal(turned.weights, heads.weights)
    assert isinstance(turned, Heads)


def test_heads_are_those_of_one_image_where_only_its_queries_have_places():
    weights = torch.randn(3, 2, 4, 7).softmax(
        -1
    )  # by head, then by image: a head is not what stands together
    ids = torch.arange(8).view(1, 2, 4, 1).expand(3, 2, 4, 7).flatten(0, 1)
    heads = by_head(weights.flatten(0, 1), -1, Cells(ids, (2, 2)), nowhere(ids.shape), n_images=2)
    assert torch.equal(heads.weights, weights.transpose(0, 1))


def test_a_softmax_that_weighs_nothing_is_not_attention():
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            maps = self.conv(x)
            return self.fc((maps * maps.mean((2, 3), keepdim=True).softmax(1)).mean((2, 3))).softmax(-1)

    assert not seen_in(Gate(), torch.randn(2, 3, 8, 8))


def test_the_model_is_left_as_it_was_even_when_it_fails(unchanged):
    model, x, small = vit(), torch.randn(1, 3, 32, 32), torch.randn(1, 3, 16, 16)
    check = unchanged(model)
    capture_attention(model, (x,), Selection(), choice=EVENLY)
    check()
    with pytest.raises(ForwardError):
        capture_attention(model, (small,), Selection(), choice=EVENLY)
    check()
    with torch.no_grad():
        before = model(x)
        assert torch.equal(model(x), before)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_weights_of_transformers_are_its_own(implementation):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=32,
        patch_size=8,
        attn_implementation=implementation,
    )
    model, x = transformers.ViTModel(config).eval(), torch.randn(2, 3, 32, 32)
    seen = seen_in(model, x)
    model.set_attn_implementation("eager")
    for one, weights in zip(seen, model(x, output_attentions=True).attentions, strict=True):
        assert_close(one.kept.weights, weights.detach(), A_NETWORK)
