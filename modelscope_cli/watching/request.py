"""What is asked of `watch`, of a script and of a loop alike. Standard library only."""

from dataclasses import dataclass
from pathlib import Path

from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.watch import WatchRecord


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """How to watch, and where to write.

    Attributes:
        every: look at every so many steps; None for the schedule of `is_recorded`.
        steps: stop after so many; None for no end.
        abort_on: stop at what is not finite (`nan`), or at the first finding (`findings`); None at neither.
        patterns: the layers to look at; none for every innermost call.
        folder: for the log, the report and the pictures; None to write nothing.
        force: the folder need not be empty.
        like: a run that was fine, as typed and as read, to compare with; None for none.
    """

    every: int | None = None
    steps: int | None = None
    abort_on: str | None = None
    patterns: tuple[str, ...] = ()
    folder: Path | None = None
    force: bool = False
    progress: Progress = SILENT
    like: tuple[str, WatchRecord] | None = None
