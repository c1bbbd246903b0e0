"""From batches to rows."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tolerance import close
from torch import Tensor, nn

from modelscope_cli.analysis.activations.observer import observe_activations, to_row
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.hooks.selection import Selection, select
from modelscope_cli.records.stats import ActivationStats


@dataclass
class Batch:
    args: tuple[Any, ...]
    n_images: int | None = None


EVERY = Selection(is_innermost_only=True)


def rows(
    model: nn.Module,
    *inputs: Tensor,
    selection: Selection = EVERY,
    wanted: Wanted | None = None,
    **options: Any,
) -> list[ActivationStats]:
    batches = [Batch((x,)) for x in inputs]
    found = observe_activations(
        model, lambda phase, compute, kind: map(compute, batches), selection, wanted or Wanted(), **options
    )
    return [to_row(activation) for activation in found]


def images(n: int) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0)) + 2


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    return nn.Sequential(block, nn.Flatten(), nn.Linear(216, 4))


@pytest.mark.parametrize("sizes", [[10], [4, 4, 2], [1] * 10])
def test_batches_are_as_good_as_one(net: nn.Module, sizes: list[int]) -> None:
    x = images(10)
    whole = rows(net, x)
    parts = rows(net, *x.split(sizes))
    assert [row.name for row in parts] == ["0.0", "0.1", "0.2", "1", "2"]
    for one, many in zip(whole, parts, strict=True):
        assert (many.numel, many.channels, many.dead_channels) == (one.numel, one.channels, one.dead_channels)
        assert (many.min, many.max) == close((one.min, one.max))
        for figure in ("mean", "std", "rms"):
            assert getattr(many, figure) == close(getattr(one, figure), scale=0.01), figure
        for figure in ("zero_fraction", "near_zero_fraction"):
            assert getattr(many, figure) == pytest.approx(getattr(one, figure), abs=2 / one.numel), figure


def test_the_rows_are_what_numpy_says_of_the_outputs(net: nn.Module) -> None:
    x = images(5)
    with torch.no_grad():
        conv = net.eval()[0][0](x).double().numpy()
    row = rows(net, *x.split(2))[0]
    assert (row.name, row.type, row.call, row.output, row.shape) == ("0.0", "Conv2d", 0, "", (2, 6, 6, 6))
    assert row.numel == conv.size
    assert row.mean == close(conv.mean())
    assert row.std == close(conv.std())


def test_blocks_are_left_out_unless_asked_for(net: nn.Module) -> None:
    assert [row.name for row in rows(net, images(1))] == ["0.0", "0.1", "0.2", "1", "2"]
    selection = select(net, ["0", "linear"], [], (images(1),))
    assert [row.name for row in rows(net, images(1), selection=selection)] == ["0", "2"]


def test_several_calls_are_several_rows() -> None:
    relu = nn.ReLU()
    found = rows(nn.Sequential(relu, nn.Linear(8, 8), relu), images(2), images(3))
    assert [(row.name, row.call, row.order) for row in found] == [("0", 0, 2), ("1", 0, 3), ("0", 1, 4)]
    assert all(row.numel == 5 * 3 * 8 * 8 for row in found)


class Gives(nn.Module):
    """Gives the same whatever comes in."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, x: Tensor) -> Any:
        return self.output


@pytest.mark.parametrize(("output", "problem"), [
    (torch.ones(2, 2, dtype=torch.complex64), "no statistics of a complex tensor"),
    (torch.ones(2, 2).to_sparse(), "no statistics of a sparse tensor"),
    (torch.ones(2, 2, device="meta"), "no statistics of a meta tensor"),
    (torch.full((2, 2), torch.nan), "no finite value"),
    (torch.empty(0, 2), "no elements"),
])  # fmt: skip
def test_an_output_without_statistics_is_a_row_that_says_so(output: Tensor, problem: str) -> None:
    model = nn.Sequential(nn.Identity(), Gives(output))
    good, bad = rows(model, images(1), images(1))
    assert (bad.problem, bad.mean, bad.histogram) == (problem, None, None)
    assert good.problem is None
    assert good.mean is not None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_every_part_of_a_nested_tensor_is_a_row() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
    found = rows(Gives(nested), images(1))
    assert [(row.output, row.shape, row.mean) for row in found] == [("0", (2,), 1.0), ("1", (3,), 0.0)]


def test_every_tensor_of_an_output_is_a_row() -> None:
    output = {"out": torch.ones(1, 2), "more": [torch.zeros(1, 3), "text"]}
    found = rows(Gives(output), images(1))
    assert [(row.output, row.mean) for row in found] == [("out", 1.0), ("more.0", 0.0)]


def test_channels_that_change_from_batch_to_batch_do_not_stop_it() -> None:
    x = images(1)
    (row,) = rows(nn.ReLU(), x, x[:, :2])
    assert row.numel == 192 + 128
    assert (row.channels, row.dead_channels) == (None, None)


def test_noise_in_the_model_is_the_same_in_both_passes() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.rand_like(x) * 1000

    batches = torch.zeros(1, 5), torch.zeros(1, 4)
    (row,) = rows(Noisy(), *batches, wanted=Wanted(quantiles=("p50",)))
    assert row.min < row.quantiles["p50"] < row.max


def test_only_what_is_wanted_is_there(net: nn.Module) -> None:
    wanted = Wanted(zero=False, near_zero=False, channels=False, histogram=False)
    row = rows(net, images(1), images(1), wanted=wanted)[0]
    assert row.mean is not None
    missing = (row.zero_fraction, row.near_zero_fraction, row.dead_channels, row.histogram)
    assert missing == (None,) * 4


class Repeats(nn.Module):
    """Calls `body` on every image, on each level of a pyramid, on both halves, or on what it returned."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.body = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
        self.norm = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        if self.way == "recurrent":
            for _ in range(3):
                x = self.norm(self.body(x))
            return x
        levels = [x, x[..., ::2, ::2], x[..., ::4, ::4]]
        parts = {"detector": x.split(1), "siamese": x.chunk(2), "pyramid": levels}[self.way]
        return torch.cat([self.norm(self.body(part)).flatten() for part in parts])


@pytest.mark.parametrize(("way", "calls", "shapes"), [
    ("detector", 4, 1), ("siamese", 2, 1), ("pyramid", 3, 3), ("recurrent", 3, 1),
])  # fmt: skip
def test_calls_of_one_kind_are_one_row_over_all_their_values(way: str, calls: int, shapes: int) -> None:
    model = Repeats(way)
    seen: dict[str, list[Tensor]] = {"body.0": [], "body.1": [], "norm": []}
    for name, values in seen.items():
        model.get_submodule(name).register_forward_hook(
            lambda module, args, output, values=values: values.append(output.detach().flatten())
        )
    found = rows(model, images(4))
    assert [(row.name, row.call, row.calls, len(row.shapes)) for row in found] == [
        (name, 0, calls, shapes) for name in seen
    ]
    for row in found:
        values = torch.cat(seen[row.name]).double()
        assert row.numel == len(values)
        assert (row.mean, row.std) == close((float(values.mean()), float(values.std(correction=0))))
    each = Selection(is_innermost_only=True, is_by_call=True)
    assert [row.calls for row in rows(model, images(4), selection=each)] == [1] * 3 * calls
