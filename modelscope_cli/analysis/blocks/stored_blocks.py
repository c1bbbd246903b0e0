"""Blocks computed by any number of processes, stored in a folder and merged in order."""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeVar

from modelscope_cli.analysis.blocks.folder import Block, BlockFolder, from_plain, to_text
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.architecture import seeded
from modelscope_cli.ranks import Ranks, Store, meeting_place
from modelscope_cli.records.certificate import Certificate, Machine
from modelscope_cli.records.naming import LAST_SEED

# Every process increments its own counter once per beat, from a thread that computations do not block. A process
# whose counter has not changed for `GONE_S` seconds is considered dead.
_BEAT_S, GONE_S = 1.0, 30.0
_ENDED, _DONE = -(2**40), 2**40
_RESUME = "start the same command with --resume"


class Rendezvous:
    """The store shared by the processes. Every method raises `CannotRunError` if the store has ended (exit 4)."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._seen: dict[int, tuple[int, float]] = {}
        self._is_over = threading.Event()
        with _explained():
            self._store = meeting_place()
        self.add(_alive(ranks.rank), 1)
        threading.Thread(target=self._beat, args=(self._store,), daemon=True).start()

    def add(self, word: str, n: int) -> int:
        """Add to a counter, initially 0, and return it."""
        with _explained():
            return int(self._store.add(word, n))

    def tell(self, word: str, text: str) -> None:
        """Publish a text under a key."""
        with _explained():
            self._store.set(word, text)

    def hear(self, word: str) -> str:
        """Wait for a text of another process. A store's own `wait` would ignore signals, so this polls."""
        end = time.monotonic() + _PATIENCE_S
        while not self._has(word):
            self.check()
            if time.monotonic() > end:
                raise CannotRunError("the first process does not answer", "start the command again")
            time.sleep(0.02)
        with _explained():
            return str(self._store.get(word).decode())

    def _has(self, word: str) -> bool:
        with _explained():
            return bool(self._store.check([word]))

    def check(self) -> None:
        """Raise if another process has ended; processes that have not started yet are not checked."""
        now = time.monotonic()
        for rank in set(range(self._ranks.world)) - {self._ranks.rank}:
            count = self.add(_alive(rank), 0)
            before, since = self._seen.get(rank, (None, now))
            if count != before:
                self._seen[rank] = (count, now)
            elif 0 < count < _DONE and now - since > GONE_S:
                count = _ENDED
            if count < 0:
                message = f"process {rank} of {self._ranks.world} ended before its work was done"
                raise CannotRunError(message, _RESUME)

    def leave(self, *, is_done: bool) -> None:
        """Tell the other processes that this one is done or has failed."""
        self._is_over.set()
        with suppress(CannotRunError):
            self.add(_alive(self._ranks.rank), _DONE if is_done else _ENDED)

    def _beat(self, store: Store) -> None:
        with suppress(Exception):  # of torch: the store has ended, which the main thread notices itself
            while not self._is_over.wait(_BEAT_S):
                store.add(_alive(self._ranks.rank), 1)


def _alive(rank: int) -> str:
    return f"alive {rank}"


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of torch, which has several
        message = "the rendezvous store is gone: the process that hosts it has ended"
        raise CannotRunError(message, _RESUME) from error


T = TypeVar("T")
# If no block was finished for this long, the process that claimed it is considered dead.
_PATIENCE_S, _POLL_S = 1800.0, 0.02


class StoredBlocks:
    """Iterates over stored blocks. `meeting`: where processes claim blocks; None for a single process."""

    def __init__(
        self, folder: BlockFolder, subject: Subject, machine: Machine, meeting: Rendezvous | None
    ) -> None:
        self._folder = folder
        self._subject = subject
        self._inputs = subject.inputs
        self._machine = machine
        self._meeting = meeting
        self._digest = hashlib.sha256()
        self._machines: dict[Machine, None] = {}

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Compute the blocks of a phase until none is left, and yield the partial results of all, in order."""
        for block in self._subject.track(self._all(phase, compute), phase):
            if block.result is not None:
                yield from_plain(kind, block.result)

    def _all(self, phase: str, compute: Callable[[Batch], Any]) -> Iterator[Block]:
        assert self._inputs.make_blocks is not None
        n_taken = 0
        for batch in self._inputs.make_blocks(self._claimed(phase)):
            partial = compute_block(batch, compute, self._subject.seed)
            block = Block(batch.block, batch.names, batch.broken, self._machine)
            self._folder.write(phase, block, to_text(partial))
            while n_taken < self._inputs.n_batches and self._folder.has(phase, n_taken):
                yield self.take(phase, n_taken)
                n_taken += 1
        for number in range(n_taken, self._inputs.n_batches):
            self._wait_for(phase, number)
            yield self.take(phase, number)

    def _claimed(self, phase: str) -> Iterator[int]:
        """Yield the numbers of unfinished blocks for this process, each claimed when it is asked for."""
        meeting, n = self._meeting, self._inputs.n_batches
        claimed = range(n) if meeting is None else (meeting.add(f"claimed {phase}", 1) - 1 for _ in range(n))
        yield from (number for number in claimed if number < n and not self._folder.has(phase, number))

    def _wait_for(self, phase: str, number: int) -> None:
        """Wait for a block that another process computes."""
        changed, since = 0, time.monotonic()
        while not self._folder.has(phase, number):
            if (now := self._folder.last_change()) != changed:
                changed, since = now, time.monotonic()
            if time.monotonic() - since > _PATIENCE_S:
                message = f"no process has finished a block for {_PATIENCE_S / 60:.0f} minutes"
                raise CannotRunError(message, "start the same command with --resume")
            if self._meeting is not None:
                self._meeting.check()
            time.sleep(_POLL_S)

    def take(self, phase: str, number: int) -> Block:
        """Return a finished block, and add it to the certificate."""
        block, sha256 = self._folder.read(phase, number)
        size = self._inputs.block_size
        expected = sorted(file.name for file in self._inputs.files[number * size : (number + 1) * size])
        if block.number != number or block.names != expected:
            message = f"block {number} of '{self._folder.path}' does not contain the expected images"
            raise CannotRunError(message, "leave out --resume   and give another --out")
        self._digest.update(sha256)
        self._machines[block.machine] = None
        self._inputs.feed.broken.take(number, block.broken)
        return block

    def certificate(self, document: dict[str, Any]) -> Certificate:
        return Certificate(
            images=len(self._inputs.files),
            broken=len(self._inputs.feed.broken),
            blocks=self._inputs.n_batches,
            block_size=self._inputs.block_size,
            list_sha256=document["list_sha256"],
            model_sha256=document["model_sha256"],
            options_sha256=document["options_sha256"],
            results_sha256=self._digest.hexdigest(),
            machines=tuple(self._machines),
            dtype=document["options"]["dtype"],
        )


class ForEachBlock(Protocol):
    """A function that yields the partial result of each batch, in order; see `Blocks.over`."""

    def __call__(self, phase: str, compute: Callable[[Batch], T], kind: type[T], /) -> Iterator[T]: ...


class SequentialBlocks:
    """Computes the batches in order, with the same results as stored blocks."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Yield the partial result of every batch."""
        has_blocks = self._subject.inputs.make_blocks is not None
        for batch in self._subject.track(self._subject.inputs, phase):
            partial = compute_block(batch, compute, self._subject.seed) if has_blocks else compute(batch)
            if partial is not None:
                yield partial


def compute_block(batch: Batch, compute: Callable[[Batch], T], seed: int) -> T | None:
    """Compute a block under its own seed, so that results do not depend on the process or on other blocks; None
    without images."""
    if not batch.n_images:
        return None
    with seeded((seed + batch.block) % (LAST_SEED + 1)):
        return compute(batch)
