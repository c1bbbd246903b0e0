"""Dead channels over all images, by index, each counted once."""

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.observer import observe_activations, to_rows
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.stats import ActivationStats
from modelscope_cli.report.stats.table import new_dead

WANTED = Wanted()


def rows(model: nn.Module, *inputs: Tensor) -> dict[str, ActivationStats]:
    batches = [Batch((x,), len(x)) for x in inputs]
    every = Selection(is_innermost_only=True)
    found = observe_activations(
        model.eval(), lambda phase, compute, kind: map(compute, batches), every, WANTED
    )
    return {f"{row.name}#{row.call}": row for row in to_rows(found)}


def with_dead(n: int, *dead: int) -> nn.Conv2d:
    """A convolution that makes negative numbers in the channels `dead` and positive ones in the others."""
    conv = nn.Conv2d(3, n, 1)
    with torch.no_grad():
        conv.weight.abs_()
        conv.bias.fill_(0.1)
        conv.weight[list(dead)] = 0
        conv.bias[list(dead)] = -1
    return conv


def own(found: dict[str, ActivationStats]) -> list[int]:
    before = [None, *found.values()]
    return [new_dead(*pair) for pair in zip(found.values(), before, strict=False)]


@pytest.mark.parametrize("is_inplace", [True, False])
def test_the_same_dead_channels_are_counted_once(is_inplace: bool) -> None:
    torch.manual_seed(0)
    behind = (
        nn.ReLU(is_inplace),
        nn.MaxPool2d(2),
        nn.Identity(),
        nn.Dropout(),
        nn.BatchNorm2d(8, affine=False),
    )
    model = nn.Sequential(with_dead(8, 1, 5), *behind, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    found = rows(model, torch.rand(3, 3, 8, 8))
    assert [row.dead_channels for row in found.values()] == [0, 2, 2, 2, 2, 2, 2, 2, 0]
    assert own(found) == [0, 2, 0, 0, 0, 0, 0, 0, 0]
    assert found["4#0"].dead_indices == (1, 5)


def test_what_dies_later_is_counted_there() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.weight[2], norm.bias[2] = 0, -1
    found = rows(
        nn.Sequential(with_dead(4, 0), nn.ReLU(), norm, nn.ReLU(), nn.MaxPool2d(2)), torch.rand(2, 3, 8, 8)
    )
    assert [row.dead_indices for row in found.values()] == [
        (),
        (0,),
        (0,),  # weight times nothing, and no bias
        (0, 2),
        (0, 2),
    ]
    assert own(found) == [0, 1, 0, 1, 0]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu, self.other = with_dead(3, 1), nn.ReLU(inplace=True), with_dead(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv(x))
        out = self.other(x)
        out += x - 1
        return self.relu(out)


def test_a_sum_in_place_is_not_what_the_layer_before_gave() -> None:
    torch.manual_seed(0)
    found = rows(Residual(), torch.rand(2, 3, 8, 8))
    again = found["relu#1"]
    assert again.dead_indices is not None
    assert 1 in again.dead_indices
    assert own(found)[-1] == again.dead_channels  # it died of the sum


def test_channels_are_not_passed_on_by_what_mixes_them() -> None:
    mixed = nn.Sequential(with_dead(4, 0), nn.ReLU(), nn.Conv2d(4, 4, 1))
    with torch.no_grad():
        mixed[2].weight[0], mixed[2].bias[0] = 0, 0
    assert own(rows(mixed, torch.rand(2, 3, 8, 8)))[-1] == 1


def test_alive_in_one_image_is_alive() -> None:
    x = torch.zeros(4, 5, 3, 3)
    x[1, 2, 0, 0] = 1
    x[3, 4] = -1
    (row,) = rows(nn.Identity(), *x.split(1)).values()
    assert (row.dead_indices, row.dead_channels) == ((0, 1, 3), 3)
