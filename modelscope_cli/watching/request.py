"""The request for `watch`, for scripts and loops. Standard library only."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.watch import WatchRecord


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """How to watch, and where to write.

    Attributes:
        every: interval of recorded steps; None for the schedule of `is_recorded`.
        steps: number of steps after which to stop; None for no limit.
        abort_on: stop at the first non-finite value (`nan`) or finding (`findings`); None at neither.
        patterns: the layers to record; empty for every innermost call.
        folder: for the log, the report and the figures; None to write nothing.
        force: the folder need not be empty.
        like: a reference run, as typed and as read; None without one.
        tracker: writes the record to a tracker, and returns where; None for none.
    """

    every: int | None = None
    steps: int | None = None
    abort_on: str | None = None
    patterns: tuple[str, ...] = ()
    folder: Path | None = None
    force: bool = False
    progress: Progress = SILENT
    like: tuple[str, WatchRecord] | None = None
    tracker: Callable[[WatchRecord], str] | None = None
