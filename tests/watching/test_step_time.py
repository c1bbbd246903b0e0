"""Where the time of a script goes, by a clock that only what is planted moves."""

import builtins
import io
import logging

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, Dataset, dataloader

from modelscope_cli.records.training_facts import MemoryFacts, TimeFacts
from modelscope_cli.records.watch import TrainingFacts
from modelscope_cli.rules.training import RULES
from modelscope_cli.watching import step_time
from modelscope_cli.watching.step_time import MemoryGrowth, StepTime, bytes_in_use


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


PLANTED = ("data", "forward", "backward", "optimizer", "validation", "printing", "saving", "rest")


LOGGER = logging.Logger("of these tests")
LOGGER.addHandler(logging.StreamHandler(io.StringIO()))


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
        print(Spoken(wait("printing", 0.5)), end="")  # noqa: T201
        LOGGER.warning("%s", Spoken(wait("printing", 0.5)))
        torch.save(Kept(wait("saving")), NoFile())
        clock.sleep(waits.get("rest", 0.0))


class Spoken:
    def __init__(self, wait):
        self.wait = wait

    def __str__(self):
        self.wait()
        return ""


class Kept:
    def __init__(self, wait):
        self.wait = wait

    def __reduce__(self):
        self.wait()
        return str, ()


class NoFile:
    def write(self, text):
        return len(text)

    def flush(self):
        pass


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
    assert (time.workers, time.images) == (0, 36)


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
        record.reason == "no step was seen: 10 forwards and no backward pass, so only the time was looked at"
    )


def test_nothing_stays_in_the_place_of_anything(recorded, monkeypatch):
    names = (builtins.print, torch.save, torch.autograd.backward, dataloader._BaseDataLoaderIter.__next__)
    times_of(recorded, monkeypatch, lambda clock: train({}, clock))
    after = (builtins.print, torch.save, torch.autograd.backward, dataloader._BaseDataLoaderIter.__next__)
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
    assert time.to_dict()["first"] == 7


def test_what_waits_for_an_accelerator_is_found(recorded, monkeypatch):
    # A stand-in: a result takes half a second, and after that the accelerator has nothing to do.
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
    assert (time.steps, time.waited) == (9, 9)
    assert time.seconds["device"] == pytest.approx(9 * 0.5)
    assert time.idle == pytest.approx(9 * (0.3 + 4 * 0.05))
    assert time.place.startswith("test_step_time.py:")
    assert torch.Tensor.item is slow


def test_what_waits_for_other_ranks_is_found(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(distributed, "barrier", lambda: clock.sleep(0.25))
    time = StepTime(clock)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with time.installed(lambda: False):
        for _ in range(5):
            distributed.barrier()
            optimizer.step()
    assert time.to_dict()["seconds"]["ranks"] == 4 * 0.25


@pytest.mark.parametrize(("n_passes", "first"), [(1, 7), (50, 5)])
def test_what_an_agent_collects_before_it_learns_is_not_of_the_first_step(n_passes, first):
    clock = Clock()
    time = StepTime(clock)
    for n in range(n_passes):
        time.begin_pass()
        clock.sleep(5 / n_passes)
        time.end_pass()
        clock.sleep(2 * (n == 0))  # the environment
    time.end_step()
    assert time.to_dict()["first"] == pytest.approx(first)


def test_what_a_script_does_before_its_first_batch_is_not_of_the_first_step():
    clock = Clock()
    time = StepTime(clock)
    time.begin("watching")
    time.end("watching")
    clock.sleep(60)  # imports, a data set that is read into memory
    time.begin("data")
    clock.sleep(1)
    time.end("data")
    seconds = {part: spent for part, spent in time.to_dict()["seconds"].items() if spent}
    assert seconds == {"rest": 60, "data": 1}  # without a step all of it counts
    time.end_step()
    assert time.to_dict()["first"] == 1


def judged(rule, **facts):
    known = {"steps": 100, "passes": 100, "seconds": {}, "first": 0.0, "workers": None, "images": 0}
    memory, ranks = facts.pop("memory", None), facts.pop("ranks", ())

    class Case:
        pass

    case = Case()
    case.facts = TrainingFacts(
        time=TimeFacts(**{**known, **facts}),
        memory=memory,
        rank_times=tuple(TimeFacts(**{**known, "seconds": one}) for one in ranks),
    )
    (found,) = [one for one in RULES if one.code == rule]
    return [seen.message for seen in found.judge(case, found.threshold)]


def growing(mib, **changes):
    known = {"in_data": 0.0, "marked": 40, "kept": 0}
    steps = tuple(range(0, 10 * len(mib), 10))
    return MemoryFacts(steps, tuple(2**20 * n for n in mib), **{**known, **changes})


STEADY, FLAT = [500 + 3 * n for n in range(40)], [500] * 40
LATE, EARLY = [500] * 25 + [700] * 15, [500 + 20 * n for n in range(20)] + [900] * 20
NOISE = [500 + 90 * (n * 7919 % 11) // 11 for n in range(40)]
WAITS = {"data": 5.0, "forward": 10.0, "backward": 40.0}


def seconds(**parts):
    return {"seconds": parts}


ON_DEVICE = {**seconds(device=60.0, rest=40.0), "waited": 100, "idle": 23.0}
# code: what is measured, and whether it is too much
MEASURED = {
    "MS771": [
        ({**seconds(data=61.0, rest=39.0), "workers": 2}, True),
        ({**seconds(data=40.0, rest=60.0), "workers": 0, "images": 1000}, True),
        ({**seconds(data=29.0, rest=71.0), "workers": 2}, False),
        ({**seconds(data=4.0, rest=1.0), "workers": 2}, False),
        ({**seconds(data=61.0, rest=39.0), "steps": 7}, False),
    ],
    "MS772": [
        (seconds(validation=30.0, forward=10.0, backward=10.0), True),
        (seconds(validation=19.0, forward=10.0, backward=10.0), False),
    ],
    "MS773": [({**seconds(rest=10.0), "first": 30.0}, True), ({**seconds(rest=10.0), "first": 9.0}, False)],
    "MS774": [(ON_DEVICE, True), ({**ON_DEVICE, "waited": 50}, False), ({**ON_DEVICE, "idle": 9.0}, False)],
    "MS775": [
        ({"memory": growing(STEADY)}, True),
        ({"memory": growing(STEADY, in_data=0.9)}, False),
        ({"memory": growing(STEADY[:15])}, False),
        *(({"memory": growing(mib)}, False) for mib in (FLAT, LATE, EARLY, NOISE)),
        ({"memory": growing(FLAT, kept=38)}, True),
        ({"memory": growing(STEADY, kept=40)}, True),
        ({"memory": growing(FLAT, kept=20)}, False),
    ],
    "MS776": [
        ({"ranks": [WAITS, WAITS, {**WAITS, "data": 35.0, "backward": 10.0}]}, True),
        ({"ranks": [WAITS, WAITS]}, False),
        ({"ranks": [WAITS, {**WAITS, "data": 12.0, "backward": 33.0}]}, False),
        ({"ranks": [WAITS, {**WAITS, "data": 35.0}]}, False),  # they do not wait: each trains on its own
    ],
}


@pytest.mark.parametrize("code", MEASURED)
def test_rules_speak_above_their_thresholds_only(code):
    for facts, is_too_much in MEASURED[code]:
        assert bool(judged(code, **facts)) == is_too_much, facts


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(5, 4),
        [torch.ones(5, 4), torch.ones(5)],
        {"label": 3, "image": torch.ones(5, 4)},
        [{"image": torch.ones(5, 4)}],
        (torch.tensor(0.5), torch.ones(5, 4)),
    ],
)
def test_the_images_of_a_batch_are_counted_in_any_container(batch) -> None:
    time, optimizer = StepTime(), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with time.installed(lambda: False):
        for _ in DataLoader([batch] * 3, batch_size=None):
            optimizer.step()
    assert time.to_dict()["images"] == 10  # after the first step


def losses_of(n, keep):
    """Return what is known after `n` steps in each of which `keep` is given the loss."""
    growth, weight = MemoryGrowth(lambda: 0), nn.Parameter(torch.ones(3))
    for _ in range(n):
        loss = (weight**2).sum()
        loss.backward()
        growth.see_loss(loss)
        keep(loss)
        growth.end_step()
    return growth.to_dict()


def test_losses_that_are_kept_with_their_graph_are_counted():
    kept, total = [], [0.0]

    def add(loss):
        total[0] = total[0] + loss

    def keep_ten(loss):
        kept.append(loss)
        del kept[:-10]

    for keep in (kept.append, add):
        found = losses_of(200, keep)
        assert found["marked"] == found["kept"] > 40
    for keep in (lambda loss: kept.append(loss.item()), lambda loss: kept.append(loss.detach())):
        assert losses_of(200, keep)["kept"] == 0
    found = losses_of(200, keep_ten)
    assert found["kept"] <= 3 < found["marked"]


def test_a_long_run_has_few_samples_all_over_it():
    growth = MemoryGrowth(lambda: growth._n_steps)
    for _ in range(1000):
        growth.end_step()
    found = growth.to_dict()
    assert 32 <= len(found["step"]) <= 64
    assert found["step"] == list(range(0, 1000, found["step"][1]))
    assert found["bytes"] == [step + 1 for step in found["step"]]


def test_what_a_data_set_keeps_is_distinguished():
    in_use = [1000]
    growth = MemoryGrowth(lambda: in_use[0])

    def load():
        in_use[0] += 400 + 300  # a batch, which is freed later, and what is kept
        return torch.ones(100)

    loading = growth.of_data(load)
    for _ in range(20):
        loading()
        in_use[0] += 100 - 400
        growth.end_step()
    assert growth.to_dict()["in_data"] == 0.75


@pytest.mark.skipif(bytes_in_use() is None, reason="not known on this system")
def test_the_bytes_in_use_are_those_of_tensors():
    before = bytes_in_use()
    kept = [torch.ones(2**20) for _ in range(16)]
    assert bytes_in_use() - before == pytest.approx(sum(x.nbytes for x in kept), rel=0.1)
