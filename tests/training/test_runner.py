"""The loop: what its optimizers do on paper, when callbacks are told, and what they can cancel."""

import pytest
import torch
from tolerance import close
from torch import nn

from modelscope_cli.training.callbacks import On, StepLimit
from modelscope_cli.training.fit import make_optimizer, make_schedule
from modelscope_cli.training.request import TrainRequest
from modelscope_cli.training.runner import Callback, CancelBatch, CancelEpoch, CancelFit, Runner

EVENTS = [name for name in vars(Callback) if name.startswith(("begin_", "after_"))]


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
    runner([taken], TrainRequest(lr=0.1, optimizer=optimizer)).fit(1)
    assert taken.w == close(path, dtype=torch.float64, scale=1)


def test_adamw_takes_a_step_of_its_rate_less_the_decay():
    taken = Path()
    runner([taken], TrainRequest(lr=0.1, optimizer="adamw", weight_decay=0.5)).fit(1)
    assert taken.w[0] == close(1 - 0.1 * 0.5 - 0.1, scale=0.01)


ONE_BATCH = [
    *("begin_batch", "begin_loss", "after_loss", "begin_backward", "after_backward"),
    *("begin_step", "after_step", "after_batch"),
]


def test_callbacks_are_told_everything_in_order():
    diary = Diary()
    run = runner([diary])
    run.fit(2)
    assert diary.events == ["begin_fit", *["begin_epoch", *ONE_BATCH * 3, "after_epoch"] * 2, "after_fit"]
    assert set(diary.events) == set(EVENTS)
    assert (run.step, run.epoch) == (6, 1)


@pytest.mark.parametrize("event", ["begin_batch", "begin_loss", "after_loss", "after_backward", "begin_step"])
def test_a_cancelled_batch_changes_no_weight_and_is_not_a_step(event):
    diary, taken = Diary(**{event: CancelBatch()}), Path()
    run = runner([taken, diary])
    run.fit(1)
    assert run.step == 2
    assert taken.w == close([0.9, 0.81])  # the gradient of the cancelled batch is gone
    assert diary.events.count("after_batch") == 3


def test_a_cancelled_epoch_goes_on_with_the_next():
    diary = Diary(after_step=CancelEpoch())
    run = runner([diary])
    run.fit(2)
    assert diary.events.count("begin_batch") == 1 + 3
    assert diary.events.count("after_epoch") == 2


@pytest.mark.parametrize(
    "event", ["begin_fit", "begin_epoch", "begin_batch", "after_loss", "after_batch", "after_epoch"]
)
def test_a_cancelled_fit_ends_and_is_reported(event):
    diary = Diary(**{event: CancelFit()})
    runner([diary]).fit(5)
    assert diary.events.count(event) == 1
    assert diary.events[-2:] == [event, "after_fit"]


def test_schedules_are_torchs_own():
    for name, expected in [
        ("constant", [0.1] * 4),
        ("cosine", [0.1, 0.05 * (1 + 0.5**0.5), 0.05, 0.05 * (1 - 0.5**0.5)]),
    ]:
        request = TrainRequest(lr=0.1, steps=4, schedule=name, optimizer="sgd")
        taken = Path()
        run = runner([taken, StepLimit(4)], request, batches=((0, 0),) * 9)
        if schedule := make_schedule(run.optimizer, request):
            run.callbacks.insert(1, On("after_step", lambda run, schedule=schedule: schedule.step()))
        run.fit(1)
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


@pytest.mark.parametrize(("event", "cancel"), [("begin_batch", CancelBatch), ("begin_epoch", CancelEpoch)])
def test_a_training_whose_every_batch_is_cancelled_comes_to_an_end(event, cancel):
    class Never(Callback):
        pass

    def refuse(self, run):
        raise cancel

    setattr(Never, event, refuse)
    run = runner([StepLimit(5), Never()])
    run.fit(1_000_000_000)
    assert run.step == 0
