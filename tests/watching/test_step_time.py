"""Where the time of a script goes, by a clock that only what is planted moves."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, dataloader

from modelscope_cli.records.training_facts import TimeFacts
from modelscope_cli.records.watch import TrainingFacts
from modelscope_cli.rules.training import RULES
from modelscope_cli.watching import step_time
from modelscope_cli.watching.step_time import StepTime


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Images(Dataset):
    def __init__(self, wait):
        self.wait = wait

    def __len__(self):
        return 40

    def __getitem__(self, index):
        self.wait()
        return torch.ones(4), index % 3


class Net(nn.Module):
    def __init__(self, wait):
        super().__init__()
        self.fc, self.wait = nn.Linear(4, 3), wait

    def forward(self, x):
        self.wait()
        return self.fc(x)


class Slow(torch.optim.SGD):
    def __init__(self, parameters, wait):
        super().__init__(parameters, lr=0.1)
        self.wait = wait

    def step(self, closure=None):
        self.wait()
        return super().step(closure)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, wait):
        ctx.wait = wait
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.wait()
        return grad, None


PLANTED = ("data", "forward", "backward", "optimizer", "validation", "rest")


def train(waits, clock):
    def wait(part, share=1.0):
        return lambda: clock.sleep(share * waits.get(part, 0.0))

    model = Net(wait("forward"))
    optimizer = Slow(model.parameters(), wait("optimizer"))
    held_out = Net(wait("validation"))
    for x, y in DataLoader(Images(wait("data", 0.25)), batch_size=4):
        output = SlowBackward.apply(model(x), wait("backward"))
        nn.functional.cross_entropy(output, y).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            held_out(x)
        clock.sleep(waits.get("rest", 0.0))


def times_of(recorded, monkeypatch, run):
    clock = Clock()
    monkeypatch.setattr("modelscope_cli.watching.step_time.time.perf_counter", clock)
    return recorded(lambda: run(clock)).facts.time


def test_all_parts_together_are_the_whole(recorded, monkeypatch):
    waits = {part: n + 1.0 for n, part in enumerate(PLANTED)}
    time = times_of(recorded, monkeypatch, lambda clock: train(waits, clock))
    for part, seconds in waits.items():
        assert time.seconds[part] == pytest.approx(9 * seconds)
    assert time.total - time.seconds["watching"] == pytest.approx(9 * sum(waits.values()))
    assert time.workers == 0


def test_a_script_that_trains_nothing_ends_in_its_time(recorded, monkeypatch):
    def infer(clock):
        model = Net(lambda: clock.sleep(0.2))
        with torch.no_grad():
            for x, _ in DataLoader(Images(lambda: clock.sleep(0.1)), batch_size=4):
                model(x)

    clock = Clock()
    monkeypatch.setattr("modelscope_cli.watching.step_time.time.perf_counter", clock)
    record = recorded(lambda: infer(clock))
    time = record.facts.time
    assert (time.steps, time.passes) == (0, 10)
    assert time.seconds["forward"] == pytest.approx(10 * 0.2)
    assert time.seconds["data"] == pytest.approx(10 * 0.4)
    assert (
        record.reason
        == "no step and no backward pass was seen, only 10 forwards: nothing but the time was judged"
    )


def test_nothing_stays_in_the_place_of_anything(recorded, monkeypatch):
    names = (torch.autograd.backward, dataloader._BaseDataLoaderIter.__next__)
    times_of(recorded, monkeypatch, lambda clock: train({}, clock))
    after = (torch.autograd.backward, dataloader._BaseDataLoaderIter.__next__)
    assert names == after


def test_an_exception_leaves_nothing_open():
    clock = Clock()
    time = StepTime(clock)
    time.begin("optimizer")
    clock.sleep(1)
    time.begin("forward")
    clock.sleep(2)
    time.end("optimizer")  # the forward raised
    clock.sleep(4)
    time.end_step()
    time.begin("data")
    clock.sleep(8)
    time.end("data")
    time.end_step()
    assert {part: spent for part, spent in time.to_dict()["seconds"].items() if spent} == {"data": 8}


def test_what_waits_for_an_accelerator_is_found(recorded, monkeypatch):
    # A stand-in: a result takes half a second.
    def run(clock):
        model = Net(lambda: clock.sleep(0.1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in DataLoader(Images(lambda: clock.sleep(0.05)), batch_size=4):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.wait = lambda: clock.sleep(0.5)
            loss.item()
            clock.sleep(0.3)

    def slow(tensor, original=torch.Tensor.item):
        getattr(tensor, "wait", int)()
        return original(tensor)

    monkeypatch.setattr(torch.Tensor, "item", slow)
    monkeypatch.setattr(step_time, "has_accelerator", lambda: True)
    monkeypatch.setattr(step_time, "is_on_accelerator", lambda tensor: hasattr(tensor, "wait"))
    time = times_of(recorded, monkeypatch, run)
    assert time.steps == 9
    assert time.seconds["device"] == pytest.approx(9 * 0.5)
    assert torch.Tensor.item is slow


def test_nothing_waits_where_there_is_no_accelerator(recorded, monkeypatch):
    time = times_of(recorded, monkeypatch, lambda clock: train({}, clock))
    assert "device" not in time.seconds


def judged(rule, **facts):
    known = {"steps": 100, "passes": 100, "seconds": {}, "workers": None}

    class Case:
        pass

    case = Case()
    case.facts = TrainingFacts(time=TimeFacts(**{**known, **facts}))
    (found,) = [one for one in RULES if one.code == rule]
    return [seen.message for seen in found.judge(case, found.threshold)]


@pytest.mark.parametrize(
    ("rule", "facts", "said"),
    [
        (
            "MS771",
            {"seconds": {"data": 61.0, "rest": 39.0}, "workers": 2},
            "61 % of each step is spent waiting for 2 workers",
        ),
        (
            "MS771",
            {"seconds": {"data": 40.0, "rest": 60.0}, "workers": 0},
            "40 % of each step is spent waiting for data, which the training process loads itself",
        ),
        ("MS771", {"seconds": {"data": 29.0, "rest": 71.0}, "workers": 2}, None),
        ("MS771", {"seconds": {"data": 4.0, "rest": 1.0}, "workers": 2}, None),
        ("MS771", {"seconds": {"data": 61.0, "rest": 39.0}, "steps": 7}, None),
    ],
)
def test_rules_speak_above_their_thresholds_only(rule, facts, said):
    assert judged(rule, **facts) == ([said] if said else [])
