"""Layers whose weight is computed by `torch.nn.utils.parametrize`: one layer, with its own name, type and row."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import modelscope_cli as ms
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.records.naming import layer_of


class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
        self.again = parametrizations.spectral_norm(nn.Conv2d(4, 4, 3))
        self.fc = parametrizations.orthogonal(nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.again(self.first(x)).mean((2, 3)))


def test_what_computes_the_weight_is_not_a_layer() -> None:
    layers = [layer for layer, _ in list_layers(Parametrized())]
    assert [(layer.name, layer.type, layer.is_leaf) for layer in layers] == [
        ("", "Parametrized", False),
        ("first", "Conv2d", True),
        ("again", "Conv2d", True),
        ("fc", "Linear", True),
    ]


def test_stats_and_featuremaps_are_of_the_output_of_the_convolution() -> None:
    torch.manual_seed(0)
    model, x = Parametrized().eval(), torch.randn(1, 3, 12, 12)
    record = ms.stats(model, x, layer="conv@1")
    assert [(row.name, row.type, row.shape) for row in record.layers] == [("first", "Conv2d", (1, 4, 10, 10))]
    with torch.no_grad():
        expected = float(model.first(x).double().mean())
    assert record.layers[0].mean == pytest.approx(expected, rel=1e-5)
    assert [row.name for row in ms.stats(model, x).layers] == ["first", "again", "fc"]
    assert [row.name for row in ms.stats(model, x, layer="conv@2").layers] == ["again"]


@pytest.mark.parametrize(("name", "layer"), [
    ("a.conv.weight", "a.conv"),
    ("a.conv.parametrizations.weight.original0", "a.conv"),
    ("parametrizations.weight.original", ""),
    ("weight", ""),
])  # fmt: skip
def test_a_parameter_knows_its_layer(name: str, layer: str) -> None:
    assert layer_of(name) == layer
