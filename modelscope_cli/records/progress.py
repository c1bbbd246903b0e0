"""Progress of running functions, silent by default. Standard library only."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar, runtime_checkable

from modelscope_cli.records.run import Notice

T = TypeVar("T")


class Progress(Protocol):
    """The type of `progress=` of every public function; the command line passes its console."""

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """Iterate over `total` items and show progress; `what` is a noun for them."""

    def note(self, text: str) -> None:
        """Report in one line what was decided or written."""

    def warn(self, text: str) -> None:
        """Warn in one line about the meaning of the result; also in the record."""

    def say(self, text: str) -> None:
        """Show explicitly requested text, such as the lines of the hook action `print`."""


@runtime_checkable
class LiveProgress(Progress, Protocol):
    """A progress for a user's script that writes output of its own.

    Attributes:
        redraw: given the record from time to time while the script runs; None for nothing.
    """

    redraw: Callable[[Any], object] | None

    def live(self) -> AbstractContextManager[Callable[[str], object] | None]:
        """Yield a function that redraws one line; None without a terminal."""

    def relay(self, text: str) -> None:
        """Write the script's output, such as its traceback, to stderr unchanged."""


class Told:
    """Reports each note and warning once, however often it is given, and keeps the notes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.notes: dict[str, None] = {}
        self._warnings: dict[str, None] = {}

    def note(self, text: str) -> None:
        self._once(self.notes, self._progress.note, text)

    def warn(self, text: str) -> None:
        self._once(self._warnings, self._progress.warn, text)

    def _once(self, said: dict[str, None], say: Callable[[str], None], text: str) -> None:
        if text not in said:
            said[text] = None
            say(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._progress, name)


class Silent:
    """Silent, except that `say` writes to stderr."""

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        yield from items

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        self.relay(text + "\n")

    def relay(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


SILENT = Silent()


def tell(progress: Progress, notes: Iterable[str], warnings: Iterable[Notice] = ()) -> None:
    """Report notes, then the messages of warnings."""
    for note in notes:
        progress.note(note)
    for warning in warnings:
        progress.warn(warning.message)


def spell_time(seconds: float) -> str:
    """Return `40 s`, `3 min` or `1.5 h`, rounded."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tell_more(progress: Progress, text: str) -> None:
    """Report a detail in one line if `progress` has a method `detail`."""
    getattr(progress, "detail", SILENT.note)(text)


@contextmanager
def counting(progress: Progress, what: str, total: int) -> Iterator[Callable[[], object]]:
    """Yield a function to call after each of `total` steps."""
    steps = iter(progress.track(range(total), what, total))
    next(steps, None)
    try:
        yield lambda: next(steps, None)
        for _ in steps:  # that were not needed, so that the bar ends full
            pass
    finally:
        getattr(steps, "close", lambda: None)()  # a training may end before all steps are made
