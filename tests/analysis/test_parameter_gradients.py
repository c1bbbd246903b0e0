"""Parameters: means and noise over passes, shared weights, marks."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tolerance import A_NETWORK, close
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.request import LossRequest


def images(n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 3, 8, 8, generator=generator) for _ in range(n)]


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(216, 4))


def gradients_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    scores = model(x)
    loss = F.cross_entropy(scores, scores.detach().argmax(1))
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, values), strict=True))


@pytest.mark.parametrize("n_passes", [2, 7])
def test_mean_and_noise_over_passes_are_numpys(net, measure, n_passes):
    passes = images(n_passes)
    every = [gradients_of(net, x) for x in passes]
    found = measure(net, *passes)
    assert found.passes == n_passes
    for row in found.parameters:
        samples = np.stack([grads[row.name].double().numpy() for grads in every])
        mean = samples.mean(0)
        noise = math.sqrt(samples.var(0, ddof=1).sum())
        assert row.grad_norm == close(np.linalg.norm(mean))
        assert row.grad_mean == close(mean.mean(), A_NETWORK, scale=0.0001)
        assert row.grad_std == close(mean.std())
        assert row.grad_min == close(mean.min())
        assert row.grad_max == close(mean.max())
        assert row.noise == close(noise)
        assert row.snr == close(np.linalg.norm(mean) / noise)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


def test_a_shared_weight_is_one_parameter(measure):
    torch.manual_seed(0)
    model, x = Tied(), torch.ones(1, 4)
    expected = gradients_of(model, x)
    found = measure(model, x)
    assert [row.name for row in found.parameters] == ["first.weight", "first.bias", "second.bias"]
    assert found.totals.trainable_params == 24
    total = math.sqrt(sum(float(grad.double().square().sum()) for grad in expected.values()))
    assert found.totals.grad_norm == close(total)


class Chain(nn.Module):
    """Twelve sigmoids, each of 0: every one multiplies the gradient by a quarter, exactly."""

    def __init__(self, n: int = 12) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([[1.0]]))
        self.sigmoids = nn.Sequential(*(nn.Sigmoid() for _ in range(n)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.scale * x - 0.5  # x is 0.5
        for sigmoid in self.sigmoids:
            y = sigmoid(y) - 0.5
        return y


def test_twelve_sigmoids_at_zero_make_the_gradient_vanish(measure):
    model = Chain()
    found = measure(model, torch.tensor([[0.5]]), loss=LossRequest("mean"))
    (row,) = found.parameters
    assert row.grad_norm == 0.5 * 0.25**12  # the weight's own input is 0.5
    assert row.mark == "vanishing"
    flow = [(row.name, row.grad_norm, row.mark) for row in found.activations]
    arriving = [0.25**k for k in reversed(range(12))]
    assert flow == [(f"sigmoids.{k}", arriving[k], "") for k in range(12)]  # the least is 2.4e-7
    assert found.totals.output_grad_norm == 1.0


class Marked(nn.Module):
    """One parameter for each mark, the gradient of each its factor."""

    def __init__(self) -> None:
        super().__init__()
        self.factors = {
            "plain": 1.0,
            "small": 1e-6,
            "vanishing": 1e-8,
            "large": 1e5,
            "huge": 1e7,
            "zero": 0.0,
        }
        self.factors["sick"] = math.inf
        for name in (*self.factors, "idle", "frozen"):
            self.register_parameter(name, nn.Parameter(torch.ones(1, 1)))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [factor * getattr(self, name) for name, factor in self.factors.items() if name != "sick"]
        return (x * 0 + sum(parts) + self.frozen + (self.sick - 1).sqrt()).sum()


def test_marks(measure):
    found = measure(Marked(), torch.ones(1), loss=LossRequest("mean"))
    marks = {row.name: row.mark for row in found.parameters}
    assert marks == {
        "plain": "",
        "small": "",
        "vanishing": "vanishing",
        "large": "",
        "huge": "exploding",
        "zero": "zero",
        "sick": "non-finite",
        "idle": "unused",
        "frozen": "frozen",
    }
    rows = {row.name: row for row in found.parameters}
    assert rows["idle"].problem == "no gradient"
    assert (rows["sick"].inf_count, rows["sick"].nan_count) == (1, 0)
    assert rows["frozen"].grad_norm is rows["idle"].grad_norm is rows["sick"].grad_mean is None


@pytest.mark.parametrize("is_frozen", [True, False])
def test_a_frozen_batch_norm_does_not_hide_that_the_gradient_vanishes(measure, is_frozen):
    """A fresh norm does not scale in eval mode, but one that is frozen never will."""
    model = nn.Sequential(nn.BatchNorm1d(1), Chain())
    model[0].requires_grad_(not is_frozen)
    found = measure(model, torch.tensor([[0.5]]), loss=LossRequest("mean"))
    (row,) = [row for row in found.parameters if row.name == "1.scale"]
    assert row.mark == ("vanishing" if is_frozen else "")
