"""Stretches of short steps without hooks: what is still counted, and what ends them; the clock is the test's."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as hooks

from modelscope_cli.records.training_facts import UNSEEN
from modelscope_cli.records.watch import SPARSE
from modelscope_cli.watching.recorder import Recorder
from modelscope_cli.watching.schedule import Stretches, is_noted, is_recorded
from tests.watching.conftest import Heard

SEEN = 32


@pytest.fixture(autouse=True)
def _nothing_is_followed(monkeypatch):
    """Steps that are not recorded are plain, whatever the clock says."""
    monkeypatch.setattr("modelscope_cli.watching.schedule._FOLLOWED", -1)


class Training:
    """A regression, for which hooks cost `extra` of the time of a step."""

    def __init__(self, extra=0.5, every=None):
        torch.manual_seed(0)
        self.now, self.extra, self.losses, self.bare = 0.0, extra, [], []
        self.heard = Heard()
        self.recorder = Recorder(self.heard, every, (), clock=lambda: self.now)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, optimizer=None, closure=None):
        optimizer = optimizer or self.optimizer
        is_bare = not hooks._global_forward_hooks
        self.bare.append(is_bare)
        optimizer.zero_grad()
        loss = self.model(torch.randn(3, 4)).square().mean()
        loss.backward()
        self.losses.append(loss.item())
        self.now += 1 + self.extra * (not is_bare)
        optimizer.step(*filter(None, [closure]))

    def run(self, steps=400, before=lambda training, step: None):
        with self.recorder.installed():
            for step in range(steps):
                before(self, step)
                self.step()
        assert not [event for event in self.heard.events if event[1] == "broken"]
        return self


def test_most_short_steps_run_without_hooks_and_are_counted():
    training = Training().run(800)
    heard, bare = training.heard, training.bare
    assert not any(bare[:SEEN])
    assert 0.8 < sum(bare[SEEN:]) / (800 - SEEN) < 0.95
    seen = [report.step for report in heard.reports]
    assert bare[-1]
    assert seen == [step for step in range(800) if not bare[step] or step >= 795]
    assert [report.loss for report in heard.reports] == [training.losses[step] for step in seen]
    (clock,) = training.recorder.clocks.all()
    assert clock.step == training.recorder.n_steps == 800
    told = [(step, kind) for step, kind, _ in heard.events if kind == SPARSE]
    assert told == [(bare.index(True), SPARSE)]
    time = training.recorder.step_time.to_dict()
    assert time["steps"] == bare.count(False) - 1
    assert not hooks._global_forward_hooks


def test_the_weights_are_those_of_a_run_that_is_not_watched():
    watched, alone = Training().run(), Training()
    for _ in range(400):
        alone.step()
    assert watched.losses == alone.losses
    assert any(watched.bare)
    for one, other in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("extra", "every"), [(0.0, None), (0.005, None), (0.5, 1)])
def test_no_stretches_where_hooks_take_little_or_all_steps_are_asked_for(extra, every):
    training = Training(extra, every).run(600)
    assert sum(training.bare) <= (0 if every else 8 * 13)  # to measure what a step takes without
    assert len(training.heard.reports) == 600 - sum(training.bare)


def test_optimizers_that_step_in_turn_are_seen_alike():
    training = Training()
    other = nn.Linear(4, 2)
    second = torch.optim.SGD(other.parameters(), lr=0.01)

    def before(training, step):
        for _ in range(2):
            second.zero_grad()
            other(torch.randn(3, 4)).square().mean().backward()
            second.step()

    training.run(500, before)
    counts = [sum(r.optimizer == name for r in training.heard.reports[-60:]) for name in ("SGD", "SGD#2")]
    assert any(training.bare)
    assert 1.5 < counts[0] / counts[1] < 2.5
    assert [clock.step for clock in training.recorder.clocks.all()] in ([500, 1000], [1000, 500])
    assert all(report.loss is not None for report in training.heard.reports)


def test_an_optimizer_that_begins_in_a_stretch_ends_them_for_good():
    training = Training()
    other = nn.Linear(4, 2)
    late = torch.optim.SGD(other.parameters(), lr=0.01)
    found = []

    def before(training, step):
        if found or training.recorder.stretches.is_open:
            found.append(step)
            late.zero_grad()
            other(torch.randn(3, 4)).square().mean().backward()
            late.step()

    training.run(400, before)
    seen = [report.step for report in training.heard.reports if report.optimizer == "SGD#2"]
    assert seen == list(range(len(found) - 1))
    assert not any(training.bare[found[0] + 1 :])
    assert training.recorder.bookkeeper.idle() == []


def test_a_nan_of_a_stretch_is_found_after_it_and_its_step_is_not_claimed():
    spoilt = []

    def spoil(training, step):
        if training.recorder.stretches.is_open and not spoilt:
            spoilt.append(step)
            training.model[0].weight.data[0, 0] = math.nan

    training = Training().run(600, spoil)
    (born, *_) = training.heard.births
    assert born.what == UNSEEN
    assert spoilt[0] < born.step <= spoilt[0] + 9


def test_a_closure_ends_stretches_for_good():
    training = Training()

    def before(training, step):
        if step == 24:
            optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=2)

            def closure():
                optimizer.zero_grad()
                loss = training.model(torch.ones(3, 4)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)

    assert not any(training.run(500, before).bare)


def test_evaluation_is_recorded_in_a_stretch():
    training = Training()

    def evaluate(training, step):
        with torch.no_grad():
            functional.mse_loss(training.model(torch.ones(3, 4)), torch.ones(3, 2))

    training.run(400, evaluate)
    assert any(training.bare)
    rows = [sums.row()[1] for r in training.heard.reports for sums in r.evaluated.values()]
    rest = [sums.row()[1] for sums in training.recorder.criteria.take(False).values()]
    assert sum(rows) + sum(rest) == 400 * 3


def test_a_stretch_is_a_small_part_of_the_run():
    clock = iter(range(10**9))
    stretches = Stretches(lambda: float(next(clock)))
    lengths = []
    for n in range(1, 5001):
        if stretches.is_open:
            if stretches.ends(1):
                stretches.end()
                stretches._without.extend([1e-3] * 9)  # next to nothing, so that hooks always cost too much
        elif stretches.begins(1, n, was_plain=True, is_next_plain=True):
            lengths.append((n, stretches._left))
    assert lengths[0] == (SEEN, 8)
    assert max(length for _, length in lengths) == 32
    assert all(length <= max(at // 16, 8) for at, length in lengths)


def test_a_step_after_a_gap_is_noted_if_any_in_the_gap_would_be():
    assert is_noted(3000, 2999) != is_noted(3000, 2900)
    assert [is_recorded(20, None, after) for after in (19, 18, 16, 15)] == [
        any(is_recorded(step, None) for step in range(after + 1, 21)) for after in (19, 18, 16, 15)
    ]
    assert [is_recorded(10, 4, after) for after in (9, 8, 7)] == [False, False, True]
