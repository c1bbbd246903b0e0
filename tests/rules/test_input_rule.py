"""What enters a model: its figures, and the rule about them."""

import pytest
import torch
from tolerance import close
from torch import Tensor, nn

import modelscope_cli as ms


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def network(*first: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*first, nn.Conv2d(3, 4, 3), nn.Flatten(1), nn.Linear(4 * 6 * 6, 5)).eval()


class Prepares(nn.Module):
    """Takes bytes and normalises them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - 127.5) / 74.0)


def raw() -> Tensor:
    return (noise(2, 3, 8, 8).sigmoid() * 255).floor()


def seen(model, x):
    return [(one.code, one.severity) for one in ms.check(model, x, select="MS103").findings]


@pytest.mark.parametrize(("x", "found"), [
    (raw(), [("MS103", "warning")]),
    (raw() / 255, []),
    (noise(2, 3, 8, 8), []),
    (3 * noise(2, 3, 8, 8) - 2, []),
    (torch.full((2, 3, 8, 8), 0.5), [("MS103", "warning")]),
    (torch.zeros(2, 3, 8, 8), [("MS103", "warning")]),
    (noise(2, 3, 8, 8).log(), [("MS103", "error")]),
])  # fmt: skip
def test_raw_constant_and_broken_inputs(x, found):
    assert seen(network(), x) == found


@pytest.mark.parametrize("n", [0, 1, 3])
def test_images_of_one_colour_are_counted_also_where_channels_differ(n):
    x = noise(4, 3, 8, 8)
    x[:n] = torch.tensor([-2.1, -2.0, -1.8])[:, None, None]  # black, as normalised
    findings = ms.check(network(), x, batch=3, select="MS103").findings
    assert [one.value for one in findings] == [n] * bool(n)
    x[:n, 0, 0, 0] += 1e-3
    assert not ms.check(network(), x, select="MS103").findings


def test_a_model_that_normalises_its_input_is_given_what_it_wants():
    assert seen(Prepares(), raw()) == []
    assert seen(network(nn.BatchNorm2d(3)), raw()) == []


def test_codes_are_not_measures():
    model = nn.Sequential(nn.Embedding(1000, 8), nn.Flatten(1), nn.Linear(32, 4))
    assert seen(model, torch.full((2, 4), 900)) == []


def test_the_figures_are_those_of_all_batches():
    x = noise(6, 3, 8, 8)
    x[5] *= 20
    for record in (ms.stats(network(), x, batch=2), ms.check(network(), x, batch=2, select="MS103")):
        (row,) = record.inputs
        assert (row.shape, row.dtype, row.numel) == ((2, 3, 8, 8), "float32", x.numel())
        assert row.mean == close(float(x.double().mean()), scale=10)
        assert row.std == close(float(x.double().std(correction=0)))
        assert (row.min, row.max) == (float(x.min()), float(x.max()))
        assert (row.nan_count, row.inf_count) == (0, 0)
        assert "2x3x8x8 float32, mean" in str(record)
