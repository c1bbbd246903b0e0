"""Recording stays below a share of the time of the steps, and says so; the clock is the test's."""

import torch
from torch import nn

from modelscope_cli.records.watch import SPARSE
from modelscope_cli.watching.recorder import Recorder
from modelscope_cli.watching.schedule import is_recorded
from tests.watching.conftest import Heard


class Clock:
    """Stands still but for `tick` seconds at each look, and what a step takes."""

    def __init__(self, tick):
        self.now, self.tick = 0.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


def recorded(tick, seconds, *, every=None, steps=400):
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


SCHEDULE = [step for step in range(400) if is_recorded(step, None)]


def test_steps_that_take_long_are_recorded_as_planned():
    assert recorded(1e-6, 1.0) == (SCHEDULE, [])


def test_of_short_steps_fewer_are_recorded_which_is_said_once():
    found, told = recorded(0.01, 0.1)
    assert (
        found[:20]
        == [step for step in SCHEDULE if step < 20]
        + [step for step in found if step >= 20][: 20 - sum(step < 20 for step in SCHEDULE)]
    )
    assert 20 <= len(found) < len(SCHEDULE)
    assert found[-1] > 200  # it goes on
    assert len(told) == 1
    assert told[0][0] >= 20


def test_who_asks_for_every_step_is_given_every_step():
    assert recorded(0.01, 0.1, every=1, steps=60) == (list(range(60)), [])
