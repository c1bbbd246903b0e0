"""Dead channels over all images, by index, with the zeros of each, and each counted once."""

from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from modelscope_cli.analysis.activations.observer import observe_activations, to_rows
from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_on_device, reduce_tensor
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.naming import index_ranges
from modelscope_cli.records.stats import ActivationStats

WANTED = Wanted(channel_zeros=True)


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


def own(row: ActivationStats) -> int:
    assert row.dead_channels is not None
    assert row.dead_inherited is not None
    return row.dead_channels - row.dead_inherited


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
    assert [own(row) for row in found.values()] == [0, 2, 0, 0, 0, 0, 0, 0, 0]
    assert found["4#0"].dead_indices == (1, 5)


def test_what_dies_later_is_counted_there() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    with torch.no_grad():
        norm.weight[2], norm.bias[2] = 0, -1
    found = rows(
        nn.Sequential(with_dead(4, 0), nn.ReLU(), norm, nn.ReLU(), nn.MaxPool2d(2)), torch.rand(2, 3, 8, 8)
    )
    assert [(row.dead_indices, own(row)) for row in found.values()] == [
        ((), 0),
        ((0,), 1),
        ((0,), 0),  # weight times nothing, and no bias
        ((0, 2), 1),
        ((0, 2), 0),
    ]


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
    assert own(again) == again.dead_channels  # it died of the sum


def test_channels_are_not_passed_on_by_what_mixes_them() -> None:
    shuffle = nn.Sequential(with_dead(4, 0, 2), nn.ReLU(), nn.ChannelShuffle(2))
    found = rows(shuffle, torch.rand(2, 3, 8, 8))
    assert own(found["2#0"]) == found["2#0"].dead_channels == 2
    mixed = nn.Sequential(with_dead(4, 0), nn.ReLU(), nn.Conv2d(4, 4, 1))
    with torch.no_grad():
        mixed[2].weight[0], mixed[2].bias[0] = 0, 0
    assert own(rows(mixed, torch.rand(2, 3, 8, 8))["2#0"]) == 1


def test_alive_in_one_image_is_alive() -> None:
    x = torch.zeros(4, 5, 3, 3)
    x[1, 2, 0, 0] = 1
    x[3, 4] = -1
    (row,) = rows(nn.Identity(), *x.split(1)).values()
    assert (row.dead_indices, row.dead_channels) == ((0, 1, 3), 3)
    assert row.channel_zeros == (36, 36, 35, 36, 27)


@given(
    st.sampled_from([((2, 3, 4, 5), 1), ((2, 7, 6), 2), ((3, 4), 1), ((2, 2, 3, 4), 3)]),
    st.integers(0, 99),
    st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_zeros_of_each_channel_are_numpys_and_add_up(
    case: tuple[tuple[int, ...], int], seed: int, is_last: bool
) -> None:
    shape, dim = case
    x = torch.randn((6, *shape[1:]), generator=torch.Generator().manual_seed(seed)).relu()
    x = x.to(memory_format=torch.channels_last) if is_last and x.ndim == 4 else x
    axes = tuple(axis for axis in range(x.ndim) if axis != dim)
    expected = tuple((x.numpy() == 0).sum(axes).tolist())
    for way in (
        lambda part: reduce_tensor(part, dim, WANTED)(),
        lambda part: reduce_on_device(part, dim, WANTED)(),
    ):
        assert reduce(Moments.merge, map(way, x.split(2))).channel_zeros == expected


@given(st.sets(st.integers(0, 40)))
def test_ranges_are_short_and_say_which(indices: set[int]) -> None:
    text = index_ranges(sorted(indices))
    found = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("..")
        found += range(int(first), int(last or first) + 1)
    assert found == sorted(indices)
    assert index_ranges([3, 7, *range(10, 21)]) == "3,7,10..20"
    assert len(text) <= len(",".join(map(str, indices)))
