"""The types of changes."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Act:
    """What a change tells its process; called each time it changes something.

    Attributes:
        tell: writes a note into the results.
        leave_out: the running step does not count.
        n: how often it was called; a change that never was had nothing to change.
    """

    tell: Callable[..., Any]
    leave_out: Callable[[], Any]
    n: int = 0

    def __call__(self) -> None:
        self.n += 1
        if self.n == 1:
            self.tell(acted=True)


Change = Callable[[Act], AbstractContextManager[None]]
"""One thing changed from outside, while open."""
