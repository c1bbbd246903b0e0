"""Write the observations of the recorder to the log, and stop the script on request."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.errors import UsageError, afterwards
from modelscope_cli.records.naming import dtype_name
from modelscope_cli.records.training_facts import Birth
from modelscope_cli.records.watch import CUT, WatchRecord
from modelscope_cli.rules.training import judge_training
from modelscope_cli.watching.criteria import CriterionKey, CriterionSums
from modelscope_cli.watching.log import Log
from modelscope_cli.watching.parameters import is_sharded
from modelscope_cli.watching.rank_log import RankLog
from modelscope_cli.watching.read_record import record_of
from modelscope_cli.watching.read_series import merge_ranks, read_series
from modelscope_cli.watching.recorder import Recorder
from modelscope_cli.watching.request import WatchRequest
from modelscope_cli.watching.schedule import is_noted
from modelscope_cli.watching.steps import StepReport

_AT_LEAST_EVERY = 256  # parts of a run: the longest delay of a finding, as a share of the time before it


class Judge:
    """Applies the rules during a run.

    Each time, all records of this rank since the beginning are judged, so in long runs not after every record.
    """

    def __init__(self, log: RankLog) -> None:
        self._log = log
        self._n_asked = 0
        self._due = 1

    def ask(self) -> str | None:
        """Return the first finding in words; called after every recorded step."""
        self._n_asked += 1
        if self._n_asked < self._due:
            return None
        self._due = self._n_asked + max(self._n_asked // _AT_LEAST_EVERY, 1)
        series = merge_ranks([self._log])
        findings = judge_training(series, series.facts).findings
        return f"{findings[0].code} {findings[0].message}" if findings else None


_NEXT_PHASE = 8  # steps of another optimizer before its facts are written, which may be short-lived


class StopScript(SystemExit):
    """Raised inside the script's `optimizer.step()`; its `finally` blocks run, its `except Exception` do not."""

    def __init__(self, code: int, reason: str, refusal: UsageError | None = None) -> None:
        super().__init__(code)
        self.exit_code = code  # of the command
        self.reason = reason  # in words
        self.refusal = refusal  # an error in the command line that is only known now


@dataclass(slots=True)
class Redraw:
    """Shows the record of a run that goes on, in a twentieth of its time at most."""

    draw: Callable[[WatchRecord], object]  # is given the record; after an error it is not called again
    every_s: float  # seconds between two at least
    due: float  # when the next one is

    @classmethod
    def every(cls, seconds: float, draw: Callable[[WatchRecord], object] | None) -> "Redraw | None":
        return None if draw is None else cls(draw, seconds, time.monotonic() + seconds)

    def is_due(self) -> bool:
        return time.monotonic() >= self.due

    def __call__(self, record: Callable[[], WatchRecord], warn: Callable[[str], object]) -> None:
        begun, self.due = time.monotonic(), math.inf
        with afterwards(warn, "the page of the running training is no longer updated"):
            self.draw(record())
            took = time.monotonic() - begun
            self.due = begun + took + max(self.every_s, 19 * took)


class Watcher:
    """The listener of one process.

    Args:
        memory: the log so far, for a judgement after each recorded step.
        models, optimizers, clock: see `Recorder`.
        script: as typed after `watch`; None for a loop, which each process watches itself.
        n_ranks: number of watched processes of the script.
        show: called with the live line: step, loss, and where values that are not finite began.
        redraw: shows the record so far; None for nothing.
    """

    def __init__(
        self,
        log: Log,
        request: WatchRequest,
        memory: RankLog,
        *,
        models: Sequence[nn.Module] | None = None,
        optimizers: Sequence[Optimizer] = (),
        script: str | None = None,
        n_ranks: int = 1,
        show: Callable[[str], object] | None = None,
        redraw: Redraw | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.recorder = Recorder(
            self, request.every, request.patterns, models, optimizers, n_ranks > 1, clock
        )
        self.recorder.is_prompt = request.steps is not None or request.abort_on is not None
        self.recorder.budget.ends_at = request.steps or math.inf
        self.recorder.stretches.is_barred |= self.recorder.is_prompt
        self._log, self._memory = log, memory
        self._folder = request.folder
        self._steps = request.steps
        self._script, self._n_ranks = script, n_ranks
        self._is_stopped_by_nan = request.abort_on == "nan"
        self._judge = Judge(memory) if request.abort_on == "findings" else None
        self._show, self.redraw = show, redraw
        self._note, self._warn = request.progress.note, request.progress.warn
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._count = itertools.count()
        self._seen: dict[str, int] = {}  # the last step by optimizer
        self._trains: dict[str, str] = {}  # by optimizer: its name and those of its models
        self._non_finite: set[str] = set()  # optimizers whose loss is no longer finite
        self._is_spoilt = False  # whether the last step that was looked at had values that are not finite
        self._facts_due: dict[str, int] = {}  # by optimizer: the next step after which facts are written
        self._birth: Birth | None = None  # the last

    def end(self, code: int | None, elapsed_ms: float, crash: str | None = None) -> dict[str, Any]:
        """Return the last entry of the log; without an exit code, the one that it would be now."""
        if code is not None:
            with contextlib.suppress(StopScript):  # it is over
                self.recorder.settle()
        self.recorder.guard(self._write_last)
        return {
            "code": code,
            "crash": crash,
            "steps": self.recorder.n_steps,
            "backward": self.recorder.losses.n_backward,
            "elapsed_ms": elapsed_ms,
            "checksums": {} if self.recorder.replicas is None else self.recorder.replicas.last_checksums(),
        }

    def _write_last(self) -> None:
        self._write_evaluation(self.recorder.n_steps, self.recorder.criteria.take(False))
        self._write_facts()

    def on_birth(self, birth: Birth) -> None:
        self._log.write("birth", **asdict(birth))
        self._birth = birth

    def on_event(self, step: int | None, kind: str, message: str) -> None:
        self._log.write("event", step=step, kind=kind, message=message)
        if kind == "broken":
            self._warn(message)
        if self._is_stopped_by_nan and kind == "loss":
            raise StopScript(1, f"stopped at step {step}: {self._cause(message)}")

    def on_unstepped(self) -> None:
        self._write_facts()

    def on_step(self, report: StepReport) -> None:
        if report.step == 0:
            self._check_layers()
            self._check_ranks()
        is_finite = report.loss is None or math.isfinite(report.loss)
        is_first_non_finite = not is_finite and report.optimizer not in self._non_finite
        if not is_finite:
            self._non_finite.add(report.optimizer)
        after = self._seen.get(report.optimizer, -1)
        self._seen[report.optimizer] = report.step
        is_last = self.recorder.budget.is_last(report.step)
        if report.is_recorded or is_noted(report.step, after) or is_first_non_finite or is_last:
            self._write(report)
        self._write_evaluation(report.step, report.evaluated)
        self._write_due_facts(report)
        if report.is_recorded or not is_finite:
            self._is_spoilt = not (is_finite and all_finite(report))
        if self._show is not None:
            if report.parameters:
                names = dict.fromkeys(model for model, *_ in report.parameters)
                self._trains[report.optimizer] = f" of {report.optimizer} ({', '.join(names)})"
            whose = self._trains.get(report.optimizer, "") if len(self._seen) > 1 else ""
            loss = "" if report.loss is None else f"  loss{whose} {report.loss:.4g}"
            birth = self._birth if self._is_spoilt else None
            origin = f"  since step {birth.step}: {birth.words}" if birth else ""
            self._show(f"step {report.step}{loss}{origin}")
        if self.redraw is not None and self.redraw.is_due():
            begun = time.process_time()
            self.redraw(self._so_far, self._warn)
            if self.recorder.guard.is_timed:  # it does not reduce what recording may cost
                self.recorder.guard.spent -= time.process_time() - begun
        if self._is_stopped_by_nan and not (is_finite and self._birth is None and all_finite(report)):
            raise StopScript(1, f"stopped at step {report.step}: {self._cause('a value is not finite')}")
        if self._judge is not None and report.is_recorded and (finding := self._judge.ask()):
            raise StopScript(1, f"stopped at step {report.step}: {finding}")
        if self._steps is not None and self.recorder.n_steps >= self._steps:
            stopped = f"stopped after {self._steps} steps, as requested"
            self.on_event(report.step, CUT, stopped)
            raise StopScript(0, stopped)

    def _so_far(self) -> WatchRecord:
        series = merge_ranks([self._memory]) if self._folder is None else read_series(self._folder)
        return record_of(series, is_running=True)

    def _cause(self, otherwise: str) -> str:
        return otherwise if self._birth is None else self._birth.words

    def _check_layers(self) -> None:
        try:
            for note in self.recorder.registry.check_patterns():
                self._note(note)
        except UsageError as refusal:
            raise StopScript(refusal.exit_code, "", refusal) from None

    def _check_ranks(self) -> None:
        script, self._script = self._script, None
        message = unwatched_ranks(script, self._n_ranks) if script is not None else None
        if message is not None:
            self.on_event(0, "unwatched", message)

    def _write(self, report: StepReport) -> None:
        layers = {
            self._number("layer", model, name, call, type=kind): sums.to_list()
            for model, name, call, kind, sums in report.layers
        }
        numbers = [
            self._parameter_number(model, name, report.optimizer, tensor)
            for model, name, tensor, _ in report.parameters
        ]
        common, ranks = report.replicas, {}
        if common is not None:
            weights = dict(zip(numbers, common.weights, strict=False))
            ranks = {"passes": common.passes, "weights": weights}
        entering = {
            self._number(
                "entering",
                model,
                key.name,
                type=key.type,
                shape=key.shape,
                dtype=key.dtype,
                computed=key.is_computed,
            ): sums.to_list()
            for model, key, sums in report.entering
        }
        rows = {
            "layers": layers,
            "parameters": dict(zip(numbers, (figures for *_, figures in report.parameters), strict=True)),
            "entering": entering,
            "criteria": self._criteria(report.criteria),
        }
        self._log.write(
            "step",
            optimizer=report.optimizer,
            step=report.step,
            loss=report.loss,
            lr=report.lr,
            recorded=report.is_recorded,
            **{name: values for name, values in rows.items() if values},
            **ranks,
        )

    def _write_evaluation(self, step: int, sums: dict[CriterionKey, CriterionSums]) -> None:
        if sums:
            self._log.write("evaluation", step=step, criteria=self._criteria(sums))

    def _criteria(self, sums_by_key: dict[CriterionKey, CriterionSums]) -> dict[int, list[Any]]:
        return {
            self._number(
                "criterion",
                key.name,
                key.place,
                key.is_training,
                classes=sums.n_classes,
                made_by=sums.made_by,
                shapes=sums.shapes,
                is_summed=sums.is_summed,
                is_weighted=sums.is_weighted,
                smoothing=sums.smoothing,
            ): sums.row()
            for key, sums in sums_by_key.items()
        }

    def _write_due_facts(self, report: StepReport) -> None:
        """Write facts at growing intervals for each optimizer, whose phase may end before the run does."""
        due = self._facts_due.get(report.optimizer, _NEXT_PHASE if self._facts_due else 1)
        if report.step + 1 >= due:
            self._facts_due[report.optimizer] = 2 * (report.step + 1)
            self._write_facts()

    def _write_facts(self) -> None:
        """Write the facts, repeatedly, as models may be deleted before a run ends."""
        recorder = self.recorder
        self._log.write("time", **recorder.step_time.to_dict())
        for model in recorder.registry.models:
            if model.has_been_trained:
                recorder.bookkeeper.note_copies(model)
        parameters = [
            (model.label, name, list(parameter.shape), *astuple(facts))
            for model, name, parameter, facts in recorder.bookkeeper.facts()
        ]
        self._log.write(
            "facts",
            optimizers=recorder.clocks.optimizer_facts(),
            models=[
                *(model.facts() for model in recorder.registry.models if model.has_been_trained),
                *(model.facts() for model in recorder.registry.hidden),
            ],
            parameters=parameters,
            idle=recorder.bookkeeper.idle(),
            schedules=recorder.clocks.schedule_facts(),
        )

    def _parameter_number(self, model: str, name: str, optimizer: str, x: Tensor) -> int:
        about: dict[str, Any] = {}
        if ("parameter", model, name) not in self._numbers:
            about = {"shape": list(x.shape), "device": str(x.device), "dtype": dtype_name(x.dtype)}
            if is_sharded(x):
                about["sharded"] = True
            elif self.recorder.replicas is not None:
                about["origin"] = self.recorder.replicas.origin(x)
        return self._number("parameter", model, name, optimizer=optimizer, **about)

    def _number(self, kind: str, *key: Any, **more: Any) -> int:
        number = self._numbers.get((kind, *key))
        if number is None:
            number = self._numbers[kind, *key] = next(self._count)
            self._log.write(kind, id=number, key=key, **more)
        return number


def all_finite(report: StepReport) -> bool:
    outputs = (sums.moments.n_nan + sums.moments.n_inf for *_, sums in report.layers)
    norms = (norm for *_, figures in report.parameters for norm in figures[:2] if norm is not None)
    return not any(outputs) and all(map(math.isfinite, norms))


def unwatched_ranks(script: str, n_watched: int) -> str | None:
    """Count the ranks of torch's process group that are not watched; None if all are, or without a group.

    Args:
        script: with its arguments, as typed.
        n_watched: number of processes started under `watch`.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    n = torch.distributed.get_world_size()
    if n <= n_watched:
        return None
    which = f"ranks that the script started are not watched ({n - n_watched} of {n})"
    return f"{which}; to watch all of them: torchrun --nproc-per-node {n} -m modelscope_cli watch {script}"
