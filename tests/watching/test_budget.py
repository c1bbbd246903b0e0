"""Recording stays below a share of the time of the steps, and says so; the clock is the test's."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as hooks

import modelscope_cli as ms
from modelscope_cli.records.training_facts import PARAMETER, UNSEEN
from modelscope_cli.records.watch import SPARSE
from modelscope_cli.watching.recorder import Recorder
from modelscope_cli.watching.schedule import Budget, is_recorded
from tests.watching.conftest import Heard


class Clock:
    """Stands still but for `tick` seconds at each look, and what a step takes."""

    def __init__(self, tick):
        self.now, self.tick = 0.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


def recorded_steps(tick, seconds, *, every=None, steps=400):
    clock, heard = Clock(tick), Heard()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder(heard, every, (), clock=clock).installed():
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
            clock.now += seconds
    found = [report.step for report in heard.reports if report.is_recorded]
    return found, [(step, kind) for step, kind, _ in heard.events if kind == SPARSE]


@pytest.fixture(autouse=True)
def _little_time(monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", 0.05)
    for name in ("_OPENING_S", "_EARLY_S", "_SEEN"):
        monkeypatch.setattr(f"modelscope_cli.watching.schedule.{name}", math.inf)


SCHEDULE = [step for step in range(400) if is_recorded(step, None)]
AT_ANY_COST = [*(step for step in SCHEDULE if step < 64), 112, 224]


def test_steps_that_take_long_are_recorded_as_planned():
    assert recorded_steps(1e-6, 1.0) == (SCHEDULE, [])


def test_of_short_steps_fewer_are_recorded_which_is_said_once():
    found, told = recorded_steps(0.01, 0.1, steps=250)
    assert (
        found[:20]
        == [step for step in SCHEDULE if step < 20]
        + [step for step in found if step >= 20][: 20 - sum(step < 20 for step in SCHEDULE)]
    )
    assert 20 <= len(found) < len(SCHEDULE)
    assert found[-1] > 150  # it goes on
    assert len(told) == 1
    assert told[0][0] >= 20


@pytest.mark.parametrize(("change", "are_many"), [(-0.1, False), (0.0, True), (math.nan, True)])
def test_a_loss_that_does_not_fall_has_as_much_time_for_early_records_as_its_steps(
    monkeypatch, change, are_many
):
    for name in ("_OPENING_S", "_EARLY_S"):
        monkeypatch.setattr(f"modelscope_cli.watching.schedule.{name}", 0.0)
    clock = Clock(0.0)
    budget, allowed = Budget(clock), []
    for step in range(60):
        is_recorded = budget.allows(step, max(step - 1, 1))
        clock.now += 0.01 + 0.009 * is_recorded
        budget.see_loss(9 + change * step)
        budget.take(0.009 * is_recorded, is_plain=not is_recorded)
        budget.n += 1
        allowed += [step] * is_recorded
    assert (sum(step >= 30 for step in allowed) > 20) is are_many


def test_the_first_steps_are_all_recorded_beside_programs_that_slow_some_records_down(monkeypatch):
    for name, seconds in (("_OPENING_S", 2.0), ("_EARLY_S", 0.02)):
        monkeypatch.setattr(f"modelscope_cli.watching.schedule.{name}", seconds)
    clock = Clock(0.0)
    budget = Budget(clock)
    for step in range(20):
        assert budget.allows(step, step - 1)
        seconds = 0.5 if step % 3 < 2 else 0.02
        clock.now += 0.01 + seconds
        budget.n += 1
        budget.see_loss(1 - 0.04 * step)
        budget.take(seconds, is_plain=False)


@pytest.mark.parametrize("n", [1, 2])
def test_losses_of_several_optimizers_need_not_fall(n):
    model = nn.Linear(4, 2)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for _ in range(n)]
    recorder = Recorder(Heard(), None, ())
    with recorder.installed():
        for step in range(12):
            model(torch.ones(3, 4)).square().mean().backward()
            optimizers[step % n].step()
    assert len(recorder.budget._losses) == (12 if n == 1 else 1)


def test_what_takes_long_to_record_is_recorded_less_from_the_very_beginning(monkeypatch):
    for name in ("_OPENING_S", "_EARLY_S"):
        monkeypatch.setattr(f"modelscope_cli.watching.schedule.{name}", 0.3)
    found, told = recorded_steps(0.01, 0.1, steps=60)
    assert found[:4] == [0, 1, 2, 3]
    assert len(found) < 20
    assert [kind for _, kind in told] == [SPARSE]


def test_without_any_time_one_step_in_each_doubling_is_recorded(monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", -math.inf)
    found, told = recorded_steps(0.01, 0.0)
    assert found == AT_ANY_COST
    assert told[0] == (63, SPARSE)


def test_who_asks_for_every_step_is_given_every_step():
    assert recorded_steps(0.01, 0.1, every=1, steps=60) == (list(range(60)), [])


class Root(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.seen, self.fails = nn.Linear(4, 2), 0, False

    def forward(self, x):
        self.seen += bool(hooks._global_forward_pre_hooks)
        if self.fails:
            raise ZeroDivisionError
        return self.layer(x)


def explode():
    """Train at a rate far too high."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    centres = torch.randn(5, 16)
    for _ in range(240):
        labels = torch.randint(5, (32,))
        x = centres[labels] + 0.5 * torch.randn(32, 16)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), labels).backward()
        optimizer.step()


def test_without_time_the_cause_is_the_same(recorded, monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.recorder.time.process_time", Clock(0.0))
    plenty = recorded(explode, every=None)
    monkeypatch.setattr("modelscope_cli.watching.recorder.time.process_time", Clock(0.01))
    little = recorded(explode, every=None)
    assert len(little.layers[0].series.step) < len(plenty.layers[0].series.step)
    for run in (plenty, little):
        assert [one.code for one in run.findings if not one.follows] == ["MS709"]


def train_without_time(monkeypatch, before=lambda step, model: None, steps=60):
    """Watch a training whose layers nothing can be spent on from step 20 on."""
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", -math.inf)
    heard, model = Heard(), Root()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = Recorder(heard, None, ())
    with recorder.installed():
        for step in range(steps):
            optimizer.zero_grad()
            before(step, model)
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    return heard, model, recorder.registry.models[0]


def test_layers_run_without_hooks_in_steps_that_are_not_looked_into(monkeypatch):
    heard, model, known = train_without_time(monkeypatch)
    recorded = [report.step for report in heard.reports if report.is_recorded]
    assert recorded == [step for step in SCHEDULE if step < 60]
    assert model.seen == 20 + sum(step >= 20 for step in recorded)
    assert len(heard.reports) == known.step == known.trained_steps[0] == 60  # all are counted
    assert not model._forward_hooks
    assert not hooks._global_forward_hooks


def test_a_forward_pass_that_raises_leaves_no_hook(monkeypatch):
    def fail(step, model):
        if step == 30:
            model.fails = True
            with pytest.raises(ZeroDivisionError):
                model(torch.randn(3, 4))
            model.fails = False
            assert not model._forward_hooks
            assert hooks._global_forward_hooks

    heard, model, _ = train_without_time(monkeypatch, fail)
    assert model.seen < len(heard.reports) == 60


@pytest.mark.parametrize("what", ["loss", "gradient", "parameter"])
def test_values_that_are_not_finite_are_dated_in_a_step_that_is_not_looked_into(what, monkeypatch):
    def spoil(step, model):
        if step == 40 and what == "parameter":
            model.layer.weight.data[0, 0] = math.nan
        elif step == 40 and what == "gradient":
            model.layer.weight.register_hook(lambda gradient: gradient * math.inf)
        elif step == 40:
            model.register_forward_hook(lambda module, args, output: output * math.nan)

    heard, _, _ = train_without_time(monkeypatch, spoil, 44)
    born = heard.births[0]
    found = (PARAMETER, 39, "layer.weight") if what == "parameter" else (UNSEEN, 40, "")
    assert (born.what, born.step, born.name) == found
    if found[0] == UNSEEN:
        assert "whose layers were not recorded in step 40" in born.words
    assert heard.reports[41].is_recorded  # the next is looked at in any case


def test_a_gradient_that_is_not_finite_is_dated_wherever_it_is(monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", -math.inf)
    for layer in (0, 7, 19):  # of 40 gradients, 16 are read
        heard, model = Heard(), nn.Sequential(*(nn.Linear(4, 4) for _ in range(20)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with Recorder(heard, None, ()).installed():
            for step in range(44):
                optimizer.zero_grad()
                model(torch.randn(3, 4)).square().mean().backward()
                if step == 40:
                    model[layer].bias.grad[0] = math.nan
                optimizer.step()
        born = heard.births[0]
        assert (born.step, born.what) in ((40, UNSEEN), (40, PARAMETER)), layer


def test_evaluation_is_counted_all_the_same(monkeypatch):
    def evaluate(step, model):
        with torch.no_grad():
            functional.mse_loss(model.eval()(torch.randn(3, 4)), torch.randn(3, 2))
        model.train()

    _, _, known = train_without_time(monkeypatch, evaluate)
    assert known.evaluated == [0, 60]


def test_each_optimizer_is_recorded_now_and_then_at_any_cost(monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", -math.inf)
    heard, models = Heard(), [nn.Linear(4, 2) for _ in range(3)]
    first, second, late = (torch.optim.SGD(model.parameters(), lr=0.01) for model in models)
    with Recorder(heard, None, ()).installed():
        for turn in range(60):
            for model, optimizer in zip(models, (first, second, late), strict=True):
                if optimizer is not late or turn >= 40:
                    optimizer.zero_grad()
                    model(torch.randn(3, 4)).square().mean().backward()
                    optimizer.step()
    found = {}
    for report in heard.reports:
        found.setdefault(report.optimizer, []).extend([report.step] * report.is_recorded)
    together = [step for step in SCHEDULE if step < 32]
    assert found == {"SGD": [*together, 32], "SGD#2": [*together, 56], "SGD#3": [0, 1, 2, 3, 6, 12]}


def test_criteria_are_recorded_as_planned_without_time_for_the_layers(monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", -math.inf)
    heard, model = Heard(), nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Recorder(heard, None, ()).installed():
        for _ in range(60):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(3, 4)), torch.tensor([0, 1, 1])).backward()
            optimizer.step()
    seen = [report.step for report in heard.reports if report.criteria]
    assert seen == [step for step in SCHEDULE if step < 60]


@pytest.mark.parametrize(("took", "charged"), [(1.0, 0.2), (1.3, 0.3), (9.0, 0.4)])
def test_what_a_step_took_longer_is_charged_up_to_twice_what_was_measured(took, charged):
    clock = Clock(0.0)
    budget = Budget(clock)
    for length, seconds, is_plain in [(1.0, 0.0, True)] * 30 + [(took, 0.2, False)]:
        clock.now += length
        budget.n += 1
        budget.take(seconds, is_plain)
    assert budget._spent == pytest.approx(charged)


@pytest.mark.parametrize("every", [None, 7])
def test_the_last_steps_before_an_end_that_was_asked_for_are_recorded(monkeypatch, every):
    """A finding takes several records in a row, which a short run has not on the schedule."""
    monkeypatch.setattr("modelscope_cli.watching.schedule._ALLOWANCE_S", -math.inf)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ms.watch(model, optimizer, steps=90, every=every) as watched:
        while True:
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()
    last = [step for step in watched.record().layers[0].series.step if step >= 84]
    assert last == ([86, 87, 88, 89] if every is None else [84])
