"""Shapes, calls and costs against numbers worked out by hand."""

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, googlenet, resnet18, vit_b_16

import modelscope_cli as ms
from modelscope_cli.analysis.summary.shapes import MeasuredStructure, measure_shapes
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.records.summary import LayerShape


def rows(structure: MeasuredStructure) -> dict[tuple[str, int], LayerShape]:
    return {(row.name, row.call): row for row in structure.layers}


class Last(nn.Module):
    """Returns what a recurrent layer returns, without its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)[0]
        return output


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("module", "shape", "macs", "output"), [
    (nn.Conv2d(3, 8, 3), (2, 3, 10, 12), 2 * 8 * 8 * 10 * 3 * 9, (2, 8, 8, 10)),
    (nn.Conv2d(4, 8, 3, groups=4, padding=1), (1, 4, 6, 6), 8 * 36 * 9, (1, 8, 6, 6)),
    (nn.Conv2d(3, 5, (3, 1), stride=2), (1, 3, 9, 9), 5 * 4 * 5 * 3 * 3, (1, 5, 4, 5)),
    (nn.ConvTranspose2d(4, 2, 2, stride=2), (1, 4, 5, 5), 4 * 25 * 2 * 4, (1, 2, 10, 10)),
    (nn.Conv1d(2, 3, 5), (1, 2, 20), 3 * 16 * 2 * 5, (1, 3, 16)),
    (nn.Conv3d(2, 3, 2), (1, 2, 4, 4, 4), 3 * 27 * 2 * 8, (1, 3, 3, 3, 3)),
    (nn.Linear(7, 5), (3, 4, 7), 3 * 4 * 7 * 5, (3, 4, 5)),
    (nn.ReLU(), (3, 4), 0, (3, 4)),
    (Last(nn.LSTM(6, 5, num_layers=2, batch_first=True)), (3, 7, 6), 3 * 7 * (20 * 11 + 20 * 10), (3, 7, 5)),
    (Last(nn.LSTM(6, 5, bidirectional=True)), (7, 3, 6), 2 * 3 * 7 * 20 * 11, (7, 3, 10)),
    (Last(nn.GRU(6, 5)), (7, 3, 6), 3 * 7 * 15 * 11, (7, 3, 5)),
])  # fmt: skip
def test_multiply_adds_by_hand(
    module: nn.Module, shape: tuple[int, ...], macs: int, output: tuple[int, ...], device: str
) -> None:
    structure = measure_shapes(nn.Sequential(module).to(device), (torch.empty(shape, device=device),))
    row = rows(structure)["0", 0]
    assert (row.input_shapes, row.output_shapes, row.macs, row.flops) == ((shape,), (output,), macs, 2 * macs)
    assert row.output_bytes == 4 * torch.Size(output).numel()
    assert structure.totals.macs == macs


def test_multiply_adds_of_attention_by_hand() -> None:
    n, tokens, width = 2, 5, 8

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    structure = measure_shapes(SelfAttention().to("meta"), (torch.empty(n, tokens, width, device="meta"),))
    projections, products = 4 * n * tokens * width * width, 2 * n * tokens * tokens * width
    row = rows(structure)["attention", 0]
    assert row.macs == projections + products
    assert row.input_shapes == ((n, tokens, width),) * 3
    inner = rows(structure)["attention.out_proj", 0]
    assert (inner.executed, inner.note) == (False, "the attention uses the weight without calling the layer")


@pytest.fixture(scope="module")
def resnet() -> MeasuredStructure:
    with torch.device("meta"):
        return measure_shapes(resnet18(), (torch.empty(1, 3, 224, 224),))


def test_resnet18_is_as_published(resnet: MeasuredStructure) -> None:
    assert resnet.totals.params == resnet.totals.trainable_params == 11_689_512
    assert resnet.totals.macs == 1_814_073_344
    assert resnet.error is None
    assert resnet.uncounted_ops  # batch norm and the like have no formula
    assert resnet.totals.layers == 68
    assert resnet.totals.calls == 68 + 8  # eight ReLUs run twice


def test_leaves_add_up_to_the_total(resnet: MeasuredStructure) -> None:
    leaves = [row for row in resnet.layers if row.is_leaf]
    assert sum(row.params for row in leaves if row.call == 0) == resnet.totals.params
    assert sum(row.macs for row in leaves) == resnet.totals.macs
    assert sum(row.output_bytes for row in leaves) == resnet.totals.activation_bytes


def test_a_reused_layer_has_a_row_for_each_call(resnet: MeasuredStructure) -> None:
    relus = [row for row in resnet.layers if row.name == "layer1.0.relu"]
    assert [(row.call, row.calls, row.executed) for row in relus] == [(0, 2, True), (1, 2, True)]
    assert relus[0].order is not None
    assert relus[1].order is not None
    assert relus[0].order < relus[1].order


def test_frozen_parameters_are_not_trainable() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))
    model[0].weight.requires_grad_(False)
    structure = measure_shapes(model, (torch.ones(1, 2),))
    assert (structure.totals.params, structure.totals.trainable_params) == (25, 19)
    assert rows(structure)["0", 0].trainable_params == 3


def test_shared_parameters_count_once() -> None:
    linear = nn.Linear(4, 4)
    structure = measure_shapes(nn.Sequential(linear, nn.ReLU(), linear), (torch.ones(1, 4),))
    assert structure.totals.params == 20
    assert structure.totals.param_bytes == 80
    assert structure.totals.macs == 32
    assert [row.calls for row in structure.layers if row.name == "0"] == [2, 2]


def test_a_failing_layer_shows_what_it_was_given() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.Linear(5, 2)), nn.ReLU())
    structure = measure_shapes(model, (torch.ones(1, 3, 8, 8),))
    assert isinstance(structure.error, ForwardError)
    assert structure.error.call is not None
    assert structure.error.call.name == "1.0"
    found = rows(structure)
    assert found["0", 0].output_shapes == ((1, 4, 6, 6),)
    failing = found["1.0", 0]
    assert (failing.executed, failing.input_shapes, failing.output_shapes) == (True, ((1, 4, 6, 6),), ())
    assert failing.macs == 0
    assert (found["2", 0].executed, found["2", 0].note) == (False, "the forward pass did not reach it")


def test_layers_never_called_say_why_where_it_is_known() -> None:
    with torch.device("meta"):
        google = googlenet(init_weights=False)
        structure = measure_shapes(google, (torch.empty(1, 3, 224, 224),))
        vit = measure_shapes(vit_b_16(), (torch.empty(1, 3, 224, 224),))
    found = rows(structure)
    assert found["aux1", 0].note == "auxiliary head, for training"
    assert found["aux1.conv.conv", 0].note == "inside conv"
    assert not found["aux1", 0].executed
    idle = [row for row in vit.layers if not row.executed]
    assert len(idle) == 12
    assert {row.note for row in idle} == {"the attention uses the weight without calling the layer"}


def test_the_outputs_of_a_dict_are_named():
    class Two(nn.Module):
        def forward(self, x):
            return {"logits": x.mean((2, 3)), "parts": [x[:, :1], x[:, 1:]]}

    (row,) = ms.summary(Two(), torch.rand(2, 3, 4, 5)).layers
    assert row.output_names == ("logits", "parts.0", "parts.1")
    assert row.output_shapes == ((2, 3), (2, 1, 4, 5), (2, 2, 4, 5))
    (plain,) = ms.summary(nn.Identity(), torch.rand(2, 3)).layers
    assert plain.output_names == ()


def test_attention_costs_the_same_computed_as_traced():
    model = VisionTransformer(32, 8, 2, 2, 64, 128, num_classes=5).eval()
    computed = measure_shapes(model, (torch.zeros(1, 3, 32, 32),))
    traced = measure_shapes(model.to("meta"), (torch.zeros(1, 3, 32, 32, device="meta"),))
    assert computed.totals.macs == traced.totals.macs
    assert "attention" not in " ".join(computed.uncounted_ops)
