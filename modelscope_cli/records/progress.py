"""How a function tells what it is doing while it runs: silent unless somebody listens. Standard library only."""

import sys
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """What every public function takes as `progress=`; the command line passes its console."""

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        """Go through `items`, `total` of them, and show how far it has come; `what` is a word for them."""

    def note(self, text: str) -> None:
        """Say in one line what was decided or written."""

    def warn(self, text: str) -> None:
        """Say in one line what may make the result mean less than it seems; it stands in the record, too."""

    def say(self, text: str) -> None:
        """Show what was asked for by name, such as the lines of the hook action `print`."""


class Silent:
    """Says nothing but what was asked for by name, which goes to stderr."""

    def track(self, items: Iterable[T], what: str, total: int) -> Iterator[T]:
        yield from items

    def note(self, text: str) -> None:
        pass

    def warn(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        sys.stderr.write(text + "\n")


SILENT = Silent()
