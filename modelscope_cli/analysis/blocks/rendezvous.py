"""How the processes that torchrun has started agree on who computes which block.

torchrun itself ends all processes when one of them fails, so none has to watch the others.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from modelscope_cli.errors import CannotRunError
from modelscope_cli.ranks import Ranks, meeting_place

_POLL_S = 0.02
_DONE = "done"


class Rendezvous:
    """Counters and texts in torchrun's store. Every method raises `CannotRunError` if torchrun has ended."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        with _explained():
            self._store = meeting_place()

    def numbers(self, counter: str, n: int) -> Iterator[int]:
        """Yield numbers from 0 to n - 1, each to one process only, when it asks for the next."""
        while (number := self._add(counter, 1) - 1) < n:
            yield number

    def tell(self, key: str, text: str) -> None:
        """Publish a text under a key."""
        with _explained():
            self._store.set(key, text)

    def hear(self, key: str) -> str:
        """Wait for a text that another process publishes."""
        self.wait_until(lambda: self._has(key))
        with _explained():
            return str(self._store.get(key).decode())

    def finish(self) -> None:
        """Make the first process end last, because it owns the folder of the blocks."""
        self._add(_DONE, 1)
        if self._ranks.is_first:
            self.wait_until(lambda: self._add(_DONE, 0) == self._ranks.world)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Ask until the answer is yes; waiting inside the store would leave signals without an effect."""
        while not is_so():
            self._add(_DONE, 0)  # raises if torchrun has ended
            time.sleep(_POLL_S)

    def _add(self, counter: str, n: int) -> int:
        with _explained():
            return int(self._store.add(counter, n))

    def _has(self, key: str) -> bool:
        with _explained():
            return bool(self._store.check([key]))


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of torch, which has several
        message = "torchrun's store is gone: torchrun has ended"
        raise CannotRunError(message, "start the same command with --resume") from error
