"""Models of every dtype, layout and size: they are recorded to the end, and trained to the same bits."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from modelscope_cli.watching.parameters import held_here, norm_of


def mlp(dtype=torch.float32):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)


class Odd(nn.Module):
    """Beside what is trained it holds a parameter of another sort, and may use it."""

    def __init__(self, held, use=lambda held, x: x):
        super().__init__()
        self.body, self.use = mlp(), use
        self.held = nn.Parameter(held, requires_grad=False)

    def forward(self, x):
        return self.body(self.use(self.held, x))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.cdouble))

    def forward(self, x):
        return (x.to(torch.cdouble) @ self.weight).abs().float()


def words():
    return torch.randint(9, (8, 4))


def sparse():
    return nn.Sequential(nn.EmbeddingBag(9, 3, sparse=True, mode="sum")).double()


def vectors_only():
    model = mlp()
    for parameter in model.parameters():
        parameter.requires_grad_(parameter.ndim == 1)
    return model


def doubles():
    return torch.randn(8, 6, dtype=torch.float64)


def narrow(held, x):
    return x @ held.float()


KINDS = {
    "float64": (lambda: mlp(torch.float64), doubles),
    "bfloat16": (lambda: mlp(torch.bfloat16), lambda: torch.randn(8, 6).bfloat16()),
    "complex128": (Complex, None),
    "whole numbers": (lambda: Odd(torch.arange(6), lambda held, x: x + held), None),
    "booleans": (lambda: Odd(torch.ones(6, dtype=torch.bool), lambda held, x: x * held), None),
    "float8": (lambda: Odd(torch.eye(6).to(torch.float8_e4m3fn), narrow), None),
    "a sparse weight": (lambda: Odd(torch.eye(6).to_sparse(), lambda held, x: (held @ x.T).T), None),
    "nothing in it": (lambda: Odd(torch.zeros(0, 4)), None),
    "on the meta device": (lambda: Odd(torch.zeros(3, 3, device="meta")), None),
    "sparse gradients": (sparse, words),
    "vectors only": (vectors_only, None),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.Linear(4, 3)), None),
}


def train(kind, holds_all, n=4):
    make, given = KINDS[kind]
    model = make()
    held = [p for p in model.parameters() if holds_all or p.requires_grad]
    is_sparse = kind == "sparse gradients"
    optimizer = torch.optim.SparseAdam(held) if is_sparse else torch.optim.SGD(held, lr=0.05)
    for _ in range(n):
        x = given() if given is not None else torch.randn(8, 6)
        optimizer.zero_grad()
        F.cross_entropy(model(x), torch.randint(3, (8,))).backward()
        optimizer.step()
    return [p.detach().to_dense() for p in model.parameters() if not p.is_meta], torch.get_rng_state()


@pytest.mark.parametrize("holds_all", [False, True], ids=["trained", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_recorded_to_the_end_and_left_as_it_is(recorded, kind, holds_all):
    torch.manual_seed(0)
    (bare, state), seen = train(kind, holds_all), []
    record = recorded(lambda: seen.extend(train(kind, holds_all)))
    assert record.steps == 4
    assert all(row.series.step == (0, 1, 2, 3) for row in record.parameters if row.optimizer)
    assert torch.equal(state, seen[1])
    assert all(a.dtype == b.dtype and bool((a == b).all()) for a, b in zip(bare, seen[0], strict=True))


def test_a_norm_is_as_wide_as_the_values():
    huge = torch.full((4,), 1e100, dtype=torch.float64)
    assert norm_of(huge) == torch.linalg.vector_norm(huge)
    assert norm_of(torch.tensor([3, 4])) == 5
    assert norm_of(torch.tensor([3 + 4j])) == 5
    assert held_here(torch.zeros(2, device="meta")).shape == (0,)


def noise_of(target):
    """Fit rewards that are noise, and what `target` makes of the next state."""

    def script():
        states, rewards = torch.randn(400, 6), 2 * torch.randn(400)
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for i in range(250):
            batch = torch.randint(400, (32,))
            values = rewards[batch] + 0.9 * target(model, 0.9 * states[batch], i)
            optimizer.zero_grad()
            F.mse_loss(model(states[batch]).mean(1), values).backward()
            optimizer.step()

    return script


def from_a_copy(model, states, i):
    if i % 30 == 0:
        from_a_copy.model = copy.deepcopy(model)
    with torch.no_grad():
        return from_a_copy.model(states).amax(1)


@pytest.mark.parametrize(("target", "is_free"), [
    (from_a_copy, True),
    (lambda model, states, i: model(states).amax(1).detach(), True),
    (lambda model, states, i: 0.0, False),
], ids=["a copy", "itself", "none"])  # fmt: skip
def test_a_loss_need_not_fall_where_a_model_makes_its_own_targets(recorded, target, is_free):
    record = recorded(noise_of(target))
    assert [one.code for one in record.findings] == ([] if is_free else ["MS735"])
    assert record.verdict == ("cannot tell" if is_free else "fault")
    assert ("come from the model itself" in (record.reason or "")) is is_free


class Dropping(nn.Module):
    def __init__(self, is_always):
        super().__init__()
        self.body, self.is_always = mlp(), is_always

    def forward(self, x):
        return self.body(F.dropout(x, 0.3, training=self.is_always or self.training))


@pytest.mark.parametrize(
    ("is_always", "draws", "is_told"),
    [(True, 1, True), (False, 1, False), (True, 5, False), (True, 0, False)],
)
def test_dropout_that_stays_active_in_validation_is_named(recorded, is_always, draws, is_told):
    """Not where the same samples are drawn for several times, nor where nothing is validated."""

    def script():
        model = Dropping(is_always)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, labels = torch.randn(32, 6), torch.randint(3, (32,))
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(model.train()(x), labels).backward()
            optimizer.step()
            with torch.no_grad():
                for _ in range(draws):
                    model.eval()(x)

    found = [one for one in recorded(script).findings if one.code == "MS743"]
    assert bool(found) is is_told
    assert all("dropout is active in evaluation mode" in one.message for one in found)
