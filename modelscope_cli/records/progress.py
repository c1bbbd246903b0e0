"""How a function tells what it is doing while it runs: silent unless a progress is given. Standard library only."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


class Progress(Protocol):
    """What every public function takes as `progress=`; the command line passes its console."""

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """Go through `items`, `total` of them, and show how far it has come; `what` is a word for them."""

    def note(self, text: str) -> None:
        """Say in one line what was decided or written."""

    def warn(self, text: str) -> None:
        """Say in one line what may make the result mean less than it seems; it is in the record, too."""

    def say(self, text: str) -> None:
        """Show what was asked for by name, such as the lines of the hook action `print`."""


@runtime_checkable
class LiveProgress(Progress, Protocol):
    """A progress beside which a user's script runs and writes."""

    def live(self) -> AbstractContextManager[Callable[[str], object] | None]:
        """Give a function that shows one line, drawn over itself; None where there is no terminal."""

    def relay(self, text: str) -> None:
        """Write what is the script's own, such as its traceback, to stderr as it is."""


class Silent:
    """Says nothing but what was asked for by name, which goes to stderr."""

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


def tell_more(progress: Progress, text: str) -> None:
    """Say in one line what only some want to know, where `progress` has a method `detail` for it."""
    getattr(progress, "detail", _ignore)(text)


def _ignore(text: str) -> None:
    pass


@contextmanager
def counting(progress: Progress, what: str, total: int) -> Iterator[Callable[[], object]]:
    """Give a function to call after each of `total` steps, where there is nothing to go through."""
    steps = iter(progress.track(range(total), what, total))
    next(steps, None)
    try:
        yield lambda: next(steps, None)
    finally:
        getattr(steps, "close", lambda: None)()  # a training may end before all steps are made
