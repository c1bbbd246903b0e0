"""The gradient that arrives at every output: in-place operations, reused layers, outputs of every kind."""

from typing import Any, NamedTuple

import pytest
import torch
from tolerance import close
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modelscope_cli.analysis.gradients.request import LossRequest

MEAN = LossRequest("mean")
X = torch.tensor([[1.0, -2.0, 3.0, 0.5]])


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Weight(nn.Module):
    """Something to train, so that the graph begins here."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def flow(found: Any) -> dict[str, list[float]]:
    return {row.name + (f"#{row.call}" if row.call else ""): row for row in found.activations}


def values(kept: Any, label: str, output: str = "") -> list[list[float]]:
    return [grad.flatten().tolist() for grad in kept.activations[label, output]]


@pytest.mark.parametrize("inplace", [False, True])
def test_the_gradient_belongs_to_the_value_before_an_operation_in_place(measure, kept, inplace):
    model = nn.Sequential(Weight(), nn.ReLU(inplace=inplace), Doubled())
    measure(model, X, loss=MEAN)
    assert values(kept, "2") == [[0.25] * 4]
    assert values(kept, "1") == [[0.5] * 4]
    assert values(kept, "0") == [[0.5, 0.0, 0.5, 0.5]]  # what the ReLU stops has not arrived


class Twice(nn.Module):
    def __init__(self, *, inplace: bool = False) -> None:
        super().__init__()
        self.weight, self.doubled, self.relu = Weight(), Doubled(), nn.ReLU(inplace=inplace)

    def forward(self, x: Tensor) -> Tensor:
        return self.doubled(self.relu(self.doubled(self.relu(self.weight(x)))))


def test_every_call_of_a_reused_layer_is_a_row(measure, kept):
    found = measure(Twice(inplace=True), X, loss=MEAN)
    assert list(flow(found)) == ["weight", "relu", "doubled", "relu#1", "doubled#1"]
    assert values(kept, "doubled#1") == [[0.25] * 4]
    assert values(kept, "relu#1") == [[0.5] * 4]
    assert values(kept, "doubled") == [[0.5, 0.0, 0.5, 0.5]]
    assert values(kept, "relu") == [[1.0, 0.0, 1.0, 1.0]]
    assert [row.order for row in found.activations] == [2, 3, 4, 5, 6]


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


class Splits(nn.Module):
    """Gives two halves in some container; only the first is used."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = nn.Parameter(torch.ones(4)), kind

    def forward(self, x: Tensor) -> Any:
        left, right = (x * self.weight).chunk(2, dim=1)
        return {
            "tuple": (left, right),
            "list": [left, [right]],
            "dict": {"left": left, "right": right},
            "named": Pair(left, right),
        }[self.kind]


class First(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.splits, self.doubled = Splits(kind), Doubled()

    def forward(self, x: Tensor) -> Tensor:
        parts = self.splits(x)
        return self.doubled(parts["left"] if isinstance(parts, dict) else parts[0])


@pytest.mark.parametrize(("kind", "paths"), [
    ("tuple", ["0", "1"]),
    ("list", ["0", "1.0"]),
    ("dict", ["left", "right"]),
    ("named", ["left", "right"]),
])  # fmt: skip
def test_every_tensor_of_an_output_is_a_row_and_one_without_use_says_so(measure, kept, kind, paths):
    used, unused, _ = measure(First(kind), X, loss=MEAN).activations
    assert [used.output, unused.output] == paths
    assert values(kept, "splits", paths[0]) == [[1.0, 1.0]]
    assert (used.mark, used.problem) == ("", None)
    assert (unused.mark, unused.grad_norm) == ("unused", None)
    assert unused.problem == "no gradient"


class Mixed(nn.Module):
    """Integers, something detached, something complex, and the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.indices, self.stop = Weight(), Returns(Tensor.argsort), Returns(Tensor.detach)
        self.wave = Returns(lambda x: torch.complex(x, x))

    def forward(self, x: Tensor) -> Tensor:
        y = self.weight(x)
        return y + self.indices(y) + self.stop(y) + self.wave(y).abs()


class Returns(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def test_an_output_that_takes_no_gradient_says_why(measure):
    rows = flow(measure(Mixed(), X, loss=MEAN))
    assert rows["weight"].problem is None
    assert rows["indices"].problem == "int64 output: no gradient"
    assert rows["stop"].problem == "frozen or detached"
    assert rows["wave"].problem == "no statistics of a complex tensor"
    assert {rows[name].mark for name in ("indices", "stop", "wave")} == {""}
    assert {rows[name].grad_norm for name in ("indices", "stop", "wave")} == {None}


def test_several_passes_are_the_root_of_the_mean_square(measure, kept):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    passes = torch.randn(5, 2, 4).unbind()
    for row in measure(model, *passes).activations:
        every = torch.stack(kept.activations[row.name, ""]).double()
        assert len(every) == 5
        assert row.grad_norm == close((every.square().sum() / 5).sqrt().item())
        assert row.grad_mean == close(every.mean().item(), scale=0.0001)
        assert row.grad_std == close(every.std(correction=0).item())
        assert (row.grad_min, row.grad_max) == (every.min().item(), every.max().item())
        assert row.grad_abs_max == every.abs().max().item()


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)
        self.middle = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.use_reentrant is None:
            return self.last(self.middle(x))
        return self.last(checkpoint(self.middle, x, use_reentrant=self.use_reentrant))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_checkpointing_runs_again_does_not_count(measure, unchanged, use_reentrant):
    plain = measure(Checkpointed(None), X)
    model = Checkpointed(use_reentrant)
    check = unchanged(model)
    found = measure(model, X)
    check()
    assert found.parameters == plain.parameters
    assert [row.name for row in found.activations] == [row.name for row in plain.activations]
    if not use_reentrant:
        assert found.activations == plain.activations
        return
    # The reentrant kind runs the middle without a graph first, which is all that can be seen of it.
    rows, expected = flow(found), flow(plain)
    assert {name for name, row in rows.items() if row != expected[name]} == {"middle.0", "middle.1"}
    assert rows["middle.0"].problem == "frozen or detached"
