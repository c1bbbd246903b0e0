"""Watch code of a test in this process, and train as scripts do."""

from collections.abc import Callable

import pytest
import torch

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.log import Log
from modelscope_cli.watching.rank_log import RankLog
from modelscope_cli.watching.read_record import record_of
from modelscope_cli.watching.read_series import merge_ranks
from modelscope_cli.watching.recorder import Recorder
from modelscope_cli.watching.request import WatchRequest
from modelscope_cli.watching.watcher import Watcher


def fit(model, loss, *, held=None, steps=12, kind=torch.optim.SGD, lr=0.1, after=lambda step: None) -> None:
    """Train: clear the gradients, go back through `loss()`, step.

    Args:
        held: parameters of the optimizer; None for those of the model.
        after: is given the number of each step that was taken.
    """
    optimizer = kind(model.parameters() if held is None else held, lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        after(step)


def codes(record: WatchRecord) -> list[str]:
    return [finding.code for finding in record.findings]


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self):
        self.reports = []
        self.events = []
        self.births = []

    def on_birth(self, birth):
        self.births.append(birth)

    def on_step(self, report):
        self.reports.append(report)

    def on_unstepped(self):
        pass

    def on_event(self, step, kind, message):
        self.events.append((step, kind, message))

    def sums(self, name, step=0, call=0):
        """Return what was seen of one call at one step."""
        (found,) = [
            row[4] for r in self.reports if r.step == step for row in r.layers if row[1:3] == (name, call)
        ]
        return found

    def names(self, step=0):
        return [(row[0], row[1], row[2]) for r in self.reports if r.step == step for row in r.layers]


@pytest.fixture
def watching() -> Callable[..., Heard]:
    """Run a function under the recorder and return what was heard."""

    def watch(function, every=1, patterns=()):
        heard = Heard()
        recorder = Recorder(heard, every, patterns)
        torch.manual_seed(0)
        with recorder.installed():
            function()
        heard.recorder = recorder
        assert not [event for event in heard.events if event[1] == "broken"]
        return heard

    return watch


@pytest.fixture
def recorded() -> Callable[..., WatchRecord]:
    """Run a function as `watch` runs a script, and return the record of it."""

    def run(function, every=1):
        memory = RankLog()
        log = Log(None, memory.take)
        log.write("begin", script="loop.py", argv=[])
        watcher = Watcher(log, WatchRequest(every=every), memory)
        torch.manual_seed(0)
        with watcher.recorder.installed():
            function()
        log.write("end", **watcher.end(0, 1.0))
        record = record_of(merge_ranks([memory]))
        assert not [event for event in record.events if event.kind == "broken"]
        return record

    return run
