"""Find the change that makes a training learn: prepare the trials before the script runs, and run them after it."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from modelscope_cli import interrupts
from modelscope_cli.errors import UsageError
from modelscope_cli.ranks import find_ranks
from modelscope_cli.records.naming import duration
from modelscope_cli.records.progress import LiveProgress
from modelscope_cli.records.trials import Trials
from modelscope_cli.records.watch import SOUND, WatchRecord
from modelscope_cli.rules.training.progress import follow
from modelscope_cli.watching.log import Log, log_file
from modelscope_cli.watching.read_record import read_record
from modelscope_cli.watching.read_series import read_series
from modelscope_cli.watching.request import WatchRequest
from modelscope_cli.watching.runner import StartedScript
from modelscope_cli.watching.trials import landlock
from modelscope_cli.watching.trials.runner import TrialRunner, deadline
from modelscope_cli.watching.trials.search import NoMoreTrialsError, Search
from modelscope_cli.watching.trials.trial import Measured

_SHORTEST_S, _LONGEST_S, _TIMES = 20.0, 600.0, 12.0  # of all trials: seconds, and times the run
_INTERRUPTED = 130, 143, 129


class FixFinder:
    """Finds the change that makes a script learn; a context manager, entered before the script runs.

    Args:
        before: time of the clock at which a run began that has ended; None if the script has not run yet.
    """

    def __init__(self, target: StartedScript, request: WatchRequest, before: float | None = None) -> None:
        self._request = request
        self._until = 0.0
        self._took = 0.0
        self._threads = os.cpu_count() or 1
        self._show: Callable[[str], object] | None = None
        self._is_cut: Callable[[], bool] = lambda: False
        self._failure: str | None = None
        self._runner: TrialRunner | None = None
        if find_ranks().world > 1:
            self._failure = "the script runs as several processes: run it as one"
            return
        without = [request.folder.absolute()] if request.folder is not None else []
        try:
            self._runner = TrialRunner(target, writable=request.fix_writes, without=without, before=before)
        except OSError as error:
            self._failure = f"the files cannot be copied: {error}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._runner is not None:
            self._runner.__exit__(*raised)

    def find(self, record: WatchRecord) -> Trials:
        """Run the trials, and return what is known when they end, are interrupted or run out of time."""
        if (reason := self._why_not(record)) is not None:
            return Trials(outcome=f"not tried: {reason}")
        self._took = record.run.elapsed_ms / 1000
        default = _LONGEST_S  # of a run that was killed, which does not say how long it was
        if self._took:
            default = max(min(_TIMES * self._took, _LONGEST_S), _SHORTEST_S)
        seconds = self._request.fix_time or default
        self._until = time.monotonic() + seconds
        progress = self._request.progress
        live = progress.live() if isinstance(progress, LiveProgress) else nullcontext()
        with live as self._show, interrupts.deferred() as self._is_cut:
            return Search(record, self._run).search()

    def _run(self, several: Sequence[tuple[str, int]], most: int) -> list[Measured]:
        """Run trials, side by side as far as there are cores for."""
        n = max((os.cpu_count() or 1) // self._threads, 1)
        with ThreadPoolExecutor(n) as pool:
            found = list(pool.map(lambda one: self._run_one(one[0], one[1], most), several))
        if found[0].survey is not None:
            self._threads = found[0].survey.threads
        return found

    def _run_one(self, trial: str, seed: int, most: int) -> Measured:
        now = time.monotonic()
        if now >= self._until:
            raise NoMoreTrialsError("the time limit for trials was reached: --fix-time 20m allows more")
        if self._show is not None:
            what = trial or "the same training again"
            again = " with another seed" if seed else ""
            self._show(f"trying: {what}{again} ({duration(self._until - now)} left)")
        until = deadline(self._took, self._until)
        is_surveyed = not trial and not seed
        assert self._runner is not None
        one = self._runner.run(trial, seed, most, until, self._is_cut, is_surveyed=is_surveyed)
        if self._is_cut():
            raise NoMoreTrialsError("interrupted")
        return one

    def _why_not(self, record: WatchRecord) -> str | None:
        if record.verdict == SOUND:
            return "nothing wrong was found"
        if record.exit_code in _INTERRUPTED:
            return "the run was interrupted"
        if not hasattr(os, "fork"):
            return f"{sys.platform} cannot fork a process for each trial"
        if not landlock.is_available() and not self._request.fix_writes:
            return "trials cannot be confined without Landlock; --fix-writes / lets them write anywhere"
        if not record.steps and not record.facts.backwards:
            return "nothing was trained"
        progress = follow(record.loss, record.lr, record.facts, record.events)
        if progress.is_adversarial:
            return "several optimizers have losses of their own, and one may rise as another falls"
        if progress.moves is not None:
            return f"the loss need not fall: {progress.moves}"
        return "the run had several processes: run it as one" if record.ranks > 1 else self._failure


def add_trials(folder: Path, trials: Trials) -> None:
    """Add trials to the log of a run."""
    log = Log(log_file(folder.absolute()), goes_on=True)
    log.write("trials", **asdict(trials))
    log.close()


def try_afterwards(folder: Path, request: WatchRequest) -> None:
    """Run the trials of a run that has ended, and add them to its log."""
    began = read_series(folder).ranks[0].begin
    target = _target_of(began, str(folder))
    with FixFinder(target, replace(request, folder=folder), before=target.at) as finder:
        add_trials(folder, finder.find(read_record(folder)))


def _target_of(begin: dict[str, Any], folder: str) -> StartedScript:
    """Return the script of a run that has ended; raise UsageError if the log does not name it or it is gone."""
    started = begin.get("started")
    if started is None:
        message = f"the log in '{folder}' does not record how its script was started"
        raise UsageError(message, "modelscope watch --try-fixes SCRIPT   runs it again")
    target = StartedScript(**started)
    if not Path(target.file).is_file() or not Path(target.cwd).is_dir():
        raise UsageError(
            f"the script of the run, '{target.file}', is gone", "modelscope watch --try-fixes SCRIPT"
        )
    return target
