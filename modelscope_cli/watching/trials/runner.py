"""Runs trials: each in a fresh copy of the files, in a process of its own, within the time that is left."""

import itertools
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from modelscope_cli.watching.runner import StartedScript
from modelscope_cli.watching.trials import landlock
from modelscope_cli.watching.trials.child import Spec
from modelscope_cli.watching.trials.meter import STEP
from modelscope_cli.watching.trials.process import TrialProcess
from modelscope_cli.watching.trials.scratch import FileSnapshot
from modelscope_cli.watching.trials.survey import Survey
from modelscope_cli.watching.trials.trial import Measured

_LONGER = 6.0  # times the time of the whole run: a trial that takes longer hangs
_AT_LEAST = 30.0  # seconds


class TrialRunner:
    """Runs trials of one script; a context manager.

    Args:
        before: see `FileSnapshot.take`; without: folders that are not copied.
        writable: folders in which trials may write, besides their own.
    """

    def __init__(
        self,
        target: StartedScript,
        *,
        writable: Sequence[Path],
        without: Sequence[Path],
        before: float | None,
    ) -> None:
        self._target = target
        self._writable = [*writable]
        self._folder = Path(tempfile.mkdtemp(prefix="modelscope-trials-"))
        file, cwd = Path(target.file), Path(target.cwd)
        self._snapshot = FileSnapshot.take(
            file, cwd, self._folder / "files", before=before, without=[*without, self._folder]
        )
        self._idle: list[TrialProcess] = []
        self._count = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._idle:
            process.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self,
        trial: str,
        seed: int,
        most: int,
        until: float,
        is_cut: Callable[[], bool],
        *,
        is_surveyed: bool = False,
    ) -> Measured:
        """Run a trial for `most` steps; several may run at the same time.

        Args:
            until: time on the monotonic clock at which it is ended; `is_cut`: whether it is to be ended now.
        """
        place = self._folder / str(next(self._count))
        laid = self._snapshot.lay(place / "files")
        typed = self._target.target
        spec = Spec(
            target=typed if self._target.module else laid.moved(typed),
            arguments=[laid.moved(one) for one in self._target.arguments],
            is_module=self._target.module,
            cwd=str(laid.cwd),
            trial=trial,
            seed=seed,
            most=most,
            is_surveyed=is_surveyed,
            results=str(place / "results"),
            output=str(place / "output"),
            writable=[str(place), *map(str, self._writable)] if landlock.is_available() else None,
        )
        (place / "spec").write_text(json.dumps(asdict(spec)))
        process = self._idle.pop() if self._idle else TrialProcess()
        try:
            has_ended = process.run(str(place / "spec"), until, is_cut)
        finally:
            self._idle.append(process)
        measure = _read(place / "results", laid.original, has_ended)
        shutil.rmtree(place, ignore_errors=True)
        return measure


def _read(results: Path, original: Any, has_ended: bool) -> Measured:
    """Return what a trial has written, even if it was killed."""
    entries: list[dict[str, Any]] = []
    with suppress(OSError):
        for line in results.read_text().splitlines():
            with suppress(ValueError):
                entries.append(json.loads(line))
    steps = [one for one in entries if one["kind"] == STEP]
    notes = {key: value for one in entries if one["kind"] != STEP for key, value in one.items()}
    error, code = notes.get("error"), notes.get("code")
    if error is None and code and not steps:
        error = f"ended with exit code {code}"
    return Measured(
        loss=tuple(one["loss"] for one in steps),
        cost=tuple(one["cost"] for one in steps),
        right=tuple(one["right"] for one in steps),
        reach=steps[-1]["step"] + 1 if steps else 0,
        has_acted=bool(notes.get("acted")),
        has_ended=has_ended,
        error=None if error is None else original(error),
        survey=Survey(**notes["survey"]) if "survey" in notes else None,
        found=tuple(one["found"] for one in entries if "found" in one),
    )


def deadline(took: float, until: float) -> float:
    """Return when one trial is ended, given how long the run took and when all trials end."""
    longest = max(_LONGER * took, _AT_LEAST) if took else math.inf
    return min(until, time.monotonic() + longest)
