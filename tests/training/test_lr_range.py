"""The range test: the sweep, the smoothing, the suggestions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tolerance import close
from torch import nn

import modelscope_cli
from modelscope_cli.records.train import Suggestion
from modelscope_cli.report.lrfind.table import answer
from modelscope_cli.training.lrfind import LrSweep, find_lr, largest_fall, noise_of, suggest
from modelscope_cli.training.runner import Callback


def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 32, 4, generator=generator)
    batches = [(inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()) for inputs in x]
    return model, optimizer, batches


def test_rates_rise_from_end_to_end():
    log = LrSweep(1e-5, 10, 7)
    assert [log.rate(i) for i in range(7)] == close(np.geomspace(1e-5, 10, 7))


def test_the_model_is_trained_at_the_rate_of_each_step():
    """With SGD the first change of the weights is the rate times the gradient."""

    class Changes(Callback):
        seen: tuple = ()

        def begin_step(self, run):
            self.before = run.model[0].weight.detach().clone()

        def after_step(self, run):
            change = (self.before - run.model[0].weight.detach()).norm() / run.model[0].weight.grad.norm()
            self.seen = (*self.seen, change.item())

    model, _, batches = small()
    optimizer, changes = torch.optim.SGD(model.parameters(), lr=7.0), Changes()
    test = find_lr(model, optimizer, batches, F.cross_entropy, LrSweep(1e-3, 0.1, 10), [changes])
    assert changes.seen == pytest.approx(np.geomspace(1e-3, 0.1, 10), rel=1e-3)
    assert test.lr == close(np.geomspace(1e-3, 0.1, 10))
    assert test.stopped == "the end of the range"


def test_it_stops_where_the_loss_diverges_or_is_not_finite():
    model, optimizer, batches = small()
    test = find_lr(model, optimizer, batches, F.cross_entropy, LrSweep(1e-4, 1e6, 60))
    assert len(test.lr) < 60
    assert test.stopped.startswith(("diverged", "the loss was not finite"))

    strange = [(torch.full((8, 4), math.nan), torch.zeros(8, dtype=torch.long))]
    test = find_lr(model, optimizer, strange, F.cross_entropy, LrSweep())
    assert test.stopped == "the loss was not finite at step 0"
    assert (test.loss, test.smoothed, test.suggestion.valley) == ((None,), (None,), None)


@given(st.floats(0.1, 10), st.integers(2, 30))
def test_the_smoothed_loss_of_a_constant_is_the_constant(loss, n):
    class Run:
        step = 0

    swept = LrSweep()
    run = Run()
    run.loss = torch.tensor(loss, dtype=torch.float64)
    for run.step in range(n):
        swept.after_loss(run)
    assert swept.smoothed == close([loss] * n)


RATES = np.geomspace(1e-5, 10, 121)


def test_suggestions_of_a_curve_known_in_closed_form():
    """A logistic fall around 1e-2, then a parabola up from 1."""
    x = np.log10(RATES)
    curve = 3 - 2 / (1 + np.exp(-4 * (x + 2))) + np.where(x > 0, 5 * x**2, 0)
    found = suggest(RATES.tolist(), curve.tolist())
    assert found.steepest == pytest.approx(1e-2, rel=RATES[1] / RATES[0] - 1)
    assert found.minimum == close(RATES[curve.argmin()] / 10)
    # Half of the logistic fall is done at 10^-2, three quarters are at 10^(-2 + ln(3) / 4)
    third = 10 ** (-2 + math.log(3) / 4) / 3
    assert found.valley == pytest.approx(min(1e-2, third), rel=RATES[1] / RATES[0] - 1)


def test_float_noise_does_not_move_the_suggestion():
    """Two stretches that fall one after the other, of which a longest one depends on the noise."""
    random, x = np.random.default_rng(5), np.log10(RATES)
    curve = 3 - np.tanh(3 * (x + 3)) - np.tanh(3 * (x + 1)) + 0.004 * random.normal(size=121)
    rates = [suggest(RATES.tolist(), curve + 1e-5 * random.normal(size=121)).valley for _ in range(20)]
    assert max(rates) < 1.5 * min(rates)


def test_a_loss_that_never_falls_has_no_suggestion():
    assert suggest(RATES.tolist(), np.linspace(2, 9, 121).tolist()).valley is None
    assert suggest([0.1, 0.2], [2, 1]).valley is None


CURVES = st.lists(st.floats(0, 9).map(lambda v: round(v, 1)), min_size=3, max_size=60)


@pytest.mark.peers
@given(CURVES)
def test_suggestions_are_those_of_fastai(losses):
    schedule = pytest.importorskip("fastai.callback.schedule")
    rates, curve = torch.tensor(RATES[: len(losses)]), torch.tensor(losses, dtype=torch.float64)
    found = suggest(rates.tolist(), losses)
    if min(losses[1:]) >= losses[0]:
        assert found.valley is None
        return
    assert found.minimum == close(schedule.minimum(rates, curve, 100)[0])
    low = losses.index(min(losses))
    assert found.steepest == schedule.steep(rates[: low + 1], curve[: low + 1], 100)[0]


@pytest.mark.parametrize(
    ("n", "last", "left"), [(100, 1.0, 85), (60, math.nan, 49), (60, math.inf, 45), (12, 1.0, 0)]
)
def test_the_curve_is_cut_where_fastai_cuts_it(n, last, left):
    """fastai records the losses that are not finite, cuts `[steps // 10 : -5]`, and drops what is from NaN on."""
    swept = LrSweep(steps=100)
    swept.lr, swept.losses = RATES[:n].tolist(), [1.0] * (n - 1) + [last]
    swept.smoothed = swept.losses if math.isfinite(last) else swept.losses[:-1]
    rates, curve = swept.judged()
    assert len(rates) == len(curve) == left
    assert rates == swept.lr[10 : 10 + left]


def swept(losses):
    """Return the fall that is looked at, and what noise explains, of a sweep of these losses."""

    class Run:
        step = 0

    callback, run = LrSweep(steps=len(losses)), Run()
    for run.step, loss in enumerate(losses):
        run.loss = torch.tensor(loss, dtype=torch.float64)
        callback.after_loss(run)
    return largest_fall(callback.judged()[1]), noise_of(losses)


KINDS = {
    "normal": lambda random, n: random.normal(size=n),
    "uniform": lambda random, n: random.uniform(size=n),
    "cross-entropy of 32": lambda random, n: np.log1p(np.exp(random.normal(size=(n, 32)))).mean(1),
    "of 4 images": lambda random, n: random.exponential(size=(n, 4)).mean(1),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [60, 100, 300])
def test_a_curve_of_noise_alone_is_flat(kind, n):
    random = np.random.default_rng(7)
    curves = [swept((9 + KINDS[kind](random, n)).tolist()) for _ in range(100)]
    assert sum(fall > noise for fall, noise in curves) <= 4
    assert sum(fall > noise / 8 for fall, noise in curves) >= 50  # as the bound is near the noise


@pytest.mark.parametrize("noise", [0.0, 0.05, 0.2, 0.4])
def test_a_fall_beyond_its_noise_is_not(noise):
    random, x = np.random.default_rng(8), np.log10(np.geomspace(1e-5, 10, 100))
    for _ in range(50):
        losses = 4 - 2 / (1 + np.exp(-4 * (x + 2))) + noise * random.normal(size=100)
        fall, explained = swept(losses.tolist())
        assert fall > explained


@pytest.mark.parametrize(("fall", "is_flat"), [(0.003, True), (0.006, True), (0.025, False), (0.1, False)])
def test_a_steady_fall_of_less_than_a_hundredth_is_flat(fall, is_flat):
    for start in (0.02, 1.4, 300.0):
        found, noise = swept([start * (1 - fall * i / 99) for i in range(100)])
        assert (found <= noise) == is_flat


@pytest.mark.parametrize(
    ("valley", "said"), [(1e-3, "just before the loss falls"), (1e-2, "fallen about half")]
)
def test_where_the_rate_is_on_the_curve_is_said_as_it_is(valley, said):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    record = modelscope_cli.lrfind(model, [(torch.ones(2, 3, 2, 2), torch.tensor([0, 1]))], steps=10)
    curve = (1.4 / (1 + (RATES / 1e-2) ** 2)).tolist()
    found = Suggestion(valley, valley, valley)
    assert said in answer(replace(record, lr=tuple(RATES), smoothed=curve, fall=1.4, suggestion=found))


@pytest.mark.parametrize(("steps", "said"), [(60, "try --steps 300"), (300, "look at the data")])
def test_a_sweep_without_a_rate_asks_for_more_steps_first(steps, said):
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    record = modelscope_cli.lrfind(model, [(torch.ones(2, 3, 2, 2), torch.tensor([0, 1]))], steps=10)
    rates = tuple(np.geomspace(1e-5, 10, steps))
    none = replace(record, suggestion=Suggestion(None, None, None), lr=rates, fall=0.1)
    assert answer(none).endswith(said)


def test_labels_that_are_drawn_give_a_flat_curve_without_a_suggestion():
    model, optimizer, batches = small()
    drawn = [
        (inputs, torch.randint(3, (32,), generator=torch.Generator().manual_seed(i)))
        for i, (inputs, _) in enumerate(batches)
    ]
    flat = find_lr(model, optimizer, drawn, F.cross_entropy, LrSweep(1e-6, 1e-2, 40))
    assert 0 <= flat.fall <= flat.noise
    assert flat.suggestion.recommended is None
    model, optimizer, batches = small()
    found = find_lr(model, optimizer, batches, F.cross_entropy, LrSweep(1e-4, 1, 100))
    assert found.fall > found.noise
    assert found.suggestion.recommended is not None


@pytest.mark.parametrize("way", ["times zero", "dead"])
def test_a_gradient_of_zero_is_named(way):
    class Net(nn.Linear):
        def forward(self, x):
            return super().forward(x) * 0 if way == "times zero" else (super().forward(x) - 1e6).relu()

    record = modelscope_cli.lrfind(Net(4, 2), [(torch.ones(2, 4), torch.tensor([0, 1]))])
    assert (record.suggestion.recommended, len(record.lr)) == (None, 10)
    assert "every gradient is zero" in answer(record)


def test_a_sweep_that_cannot_tell_is_followed_by_a_longer_one():
    x = torch.randn(40, 8, 4, generator=torch.Generator().manual_seed(0))
    batches = [(inputs, (inputs[:, 0] > 0).long()) for inputs in x]
    drawn = [(inputs, labels[torch.randperm(8)]) for inputs, labels in batches]
    model = nn.Linear(4, 2)
    assert len(modelscope_cli.lrfind(model, batches).lr) <= 100
    assert len(modelscope_cli.lrfind(model, drawn).lr) > 100
    assert len(modelscope_cli.lrfind(model, drawn, steps=60).lr) <= 60
