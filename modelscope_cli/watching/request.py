"""The request for `watch`, for scripts and loops. Standard library only."""

from dataclasses import dataclass
from pathlib import Path

from modelscope_cli.records.progress import SILENT, Progress


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """How to watch, and where to write."""

    every: int | None = None  # interval of recorded steps; None for the schedule of `is_recorded`
    steps: int | None = None  # number of steps after which to stop; None for no limit
    # Stop at the first non-finite value (`nan`) or finding (`findings`); None at neither
    abort_on: str | None = None
    patterns: tuple[str, ...] = ()  # the layers to record; empty for every innermost call
    folder: Path | None = None  # for the log, the report and the figures; None to write nothing
    force: bool = False  # the folder need not be empty
    # With trials: the seconds that they may take, None for twelve times the run or ten minutes; and where they may
    # write besides their own copy of the files
    try_fixes: bool = False
    fix_time: float | None = None
    fix_writes: tuple[Path, ...] = ()
    progress: Progress = SILENT
