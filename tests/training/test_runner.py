"""The loop: what its optimizers do on paper, when callbacks are told, and how they stop it."""

import re

import pytest
import torch
from tolerance import close
from torch import nn

from modelscope_cli.training.callbacks import On
from modelscope_cli.training.fit import make_optimizer, make_schedule
from modelscope_cli.training.request import TrainRequest
from modelscope_cli.training.runner import Callback, Runner, StopTraining

EVENTS = re.findall(r"(?:begin|after)_\w+", Callback.__doc__)


class Weight(nn.Module):
    """`f(x) = w^2 / 2`, whatever x is."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x):
        return self.w**2 / 2


class Diary(Callback):
    """Writes down what it is told, and raises where it is asked to."""

    def __init__(self, **raises):
        self.events, self.raises = [], raises

    def __getattribute__(self, event):
        if event not in EVENTS:
            return super().__getattribute__(event)

        def tell(run):
            self.events.append(event)
            error = self.raises.get(event)
            if error and self.events.count(event) == 1:
                raise error

        return tell


def runner(callbacks, request=None, batches=((0, 0),) * 3):
    model = Weight()
    optimizer = make_optimizer(model.parameters(), request or TrainRequest(lr=0.1, optimizer="sgd"))
    return Runner(model, optimizer, batches, lambda outputs, targets: outputs, callbacks)


class Path(Callback):
    def __init__(self):
        self.w, self.lr = [], []

    def begin_step(self, run):
        self.lr.append(run.optimizer.param_groups[0]["lr"])

    def after_step(self, run):
        self.w.append(run.model.w.item())


@pytest.mark.parametrize(
    ("optimizer", "path"), [("momentum", [0.9, 0.72, 0.486]), ("nesterov", [0.81, 0.5751, 0.327321])]
)
def test_the_quadratic_of_the_textbook(optimizer, path):
    taken = Path()
    runner([taken], TrainRequest(lr=0.1, optimizer=optimizer)).fit(3)
    assert taken.w == close(path, dtype=torch.float64, scale=1)


def test_adamw_takes_a_first_step_of_its_rate():
    taken = Path()
    runner([taken], TrainRequest(lr=0.1, optimizer="adamw")).fit(3)
    assert taken.w[0] == close(1 - 0.1, scale=0.01)


ONE_BATCH = ["begin_batch", "after_loss", "begin_step", "after_step"]


def test_callbacks_are_told_everything_in_order():
    diary = Diary()
    run = runner([diary])
    run.fit(5)
    assert diary.events == [*ONE_BATCH * 3, "after_epoch", *ONE_BATCH * 2, "after_fit"]
    assert set(diary.events) == set(EVENTS)
    assert run.step == 5


@pytest.mark.parametrize("event", ["begin_batch", "after_loss", "after_step", "after_epoch"])
def test_a_stopped_training_ends_there_and_is_reported(event):
    diary = Diary(**{event: StopTraining()})
    runner([diary]).fit(50)
    assert diary.events.count(event) == 1
    assert diary.events[-2:] == [event, "after_fit"]


def test_schedules_are_torchs_own():
    for name, expected in [
        ("constant", [0.1] * 4),
        ("cosine", [0.1, 0.05 * (1 + 0.5**0.5), 0.05, 0.05 * (1 - 0.5**0.5)]),
    ]:
        request = TrainRequest(lr=0.1, steps=4, schedule=name, optimizer="sgd")
        taken = Path()
        run = runner([taken], request, batches=((0, 0),) * 9)
        if schedule := make_schedule(run.optimizer, request):
            run.callbacks.append(On("after_step", lambda run, schedule=schedule: schedule.step()))
        run.fit(4)
        assert taken.lr == close(expected)


def test_one_cycle_rises_to_its_peak_and_falls_far_below_the_start():
    model = Weight()
    request = TrainRequest(lr=0.1, steps=100, schedule="one-cycle", optimizer="sgd")
    optimizer = make_optimizer(model.parameters(), request)
    schedule = make_schedule(optimizer, request)
    rates = []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step() if len(rates) < 100 else None
    assert max(rates) == close(0.1)
    assert rates.index(max(rates)) == pytest.approx(30, abs=2)
    assert rates[-1] < rates[0] / 100
