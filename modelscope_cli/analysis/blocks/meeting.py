"""How the processes of one run talk to one another, and notice that one of them has ended."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from modelscope_cli.errors import CannotRunError
from modelscope_cli.ranks import Ranks, Store, meeting_place

# Every process counts up a word of its own so often, from a thread that long computations do not stop; one whose
# word stays the same for so long has gone. Another machine may be that much slower under load, and no more.
_BEAT_S, GONE_S = 1.0, 30.0
_ENDED, _DONE = -(2**40), 2**40
_RESUME = "start the same command with --resume"


class Meeting:
    """The store in which the processes meet.

    Raises, from every method:
        CannotRunError: the store, or the process that keeps it, has ended (exit 4).
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._seen: dict[int, tuple[int, float]] = {}
        self._is_over = threading.Event()
        with _explained():
            self._store = meeting_place()
        self.add(_alive(ranks.rank), 1)
        threading.Thread(target=self._beat, args=(self._store,), daemon=True).start()

    def add(self, word: str, n: int) -> int:
        """Add to a counter, 0 at first, and return it."""
        with _explained():
            return int(self._store.add(word, n))

    def tell(self, word: str, text: str) -> None:
        """Say something to all others."""
        with _explained():
            self._store.set(word, text)

    def hear(self, word: str, patience_s: float) -> str:
        """Wait for what another process tells; not by the store's own `wait`, in which no signal would be answered.

        Raises:
            CannotRunError: it says nothing for so long, or a process has ended (exit 4).
        """
        end = time.monotonic() + patience_s
        while not self._has(word):
            self.check()
            if time.monotonic() > end:
                raise CannotRunError("the first process says nothing", "start the command again")
            time.sleep(0.02)
        with _explained():
            return str(self._store.get(word).decode())

    def _has(self, word: str) -> bool:
        with _explained():
            return bool(self._store.check([word]))

    def check(self) -> None:
        """Ask whether all others are still there; of one that has not begun yet that is not known.

        Raises:
            CannotRunError: one has ended (exit 4).
        """
        now = time.monotonic()
        for rank in set(range(self._ranks.world)) - {self._ranks.rank}:
            count = self.add(_alive(rank), 0)
            before, since = self._seen.get(rank, (None, now))
            if count != before:
                self._seen[rank] = (count, now)
            elif 0 < count < _DONE and now - since > GONE_S:
                count = _ENDED
            if count < 0:
                message = f"process {rank} of {self._ranks.world} has ended before its work was done"
                raise CannotRunError(message, _RESUME)

    def leave(self, *, is_done: bool) -> None:
        """Tell the others that this process goes no further: it is done, or cannot go on."""
        self._is_over.set()
        with suppress(CannotRunError):
            self.add(_alive(self._ranks.rank), _DONE if is_done else _ENDED)

    def _beat(self, store: Store) -> None:
        with suppress(Exception):  # of torch: the store has gone, which the main thread notices itself
            while not self._is_over.wait(_BEAT_S):
                store.add(_alive(self._ranks.rank), 1)


def _alive(rank: int) -> str:
    return f"alive {rank}"


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of torch, which has several
        message = "the rendezvous store has gone, and with it the process that keeps it"
        raise CannotRunError(message, _RESUME) from error
