"""Blocks that lie in a folder as they are finished, computed by any number of processes, put together in order."""

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from modelscope_cli.analysis.blocks.exact import from_plain, to_text
from modelscope_cli.analysis.blocks.folder import Block, BlockFolder
from modelscope_cli.analysis.blocks.in_order import compute_block
from modelscope_cli.analysis.blocks.meeting import Meeting
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.certificate import Certificate, Machine

T = TypeVar("T")
# A process that finishes no block for so long has gone, and nobody has told.
PATIENCE_S, _POLL_S = 1800.0, 0.02


class Kept:
    """Goes through blocks that are kept.

    Args:
        meeting: where processes claim blocks; None of one process.
    """

    def __init__(
        self, folder: BlockFolder, subject: Subject, machine: Machine, meeting: Meeting | None
    ) -> None:
        self._folder = folder
        self._subject = subject
        self._inputs = subject.inputs
        self._machine = machine
        self._meeting = meeting
        self._digest = hashlib.sha256()
        self._machines: dict[Machine, None] = {}

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Compute blocks of a phase until none is left, and give the partial results of all, in order."""
        for block in self._subject.track(self._all(phase, compute), phase):
            if block.result is not None:
                yield from_plain(kind, block.result)

    def _all(self, phase: str, compute: Callable[[Batch], Any]) -> Iterator[Block]:
        assert self._inputs.make_blocks is not None
        n_taken = 0
        for batch in self._inputs.make_blocks(self._claimed(phase)):
            self._finish(phase, batch, compute)
            while n_taken < self._inputs.n_batches and self._folder.has(phase, n_taken):
                yield self.take(phase, n_taken)
                n_taken += 1
        for number in range(n_taken, self._inputs.n_batches):
            self._wait_for(phase, number)
            yield self.take(phase, number)

    def _claimed(self, phase: str) -> Iterator[int]:
        """Give the numbers of blocks that are ours and not finished yet; asked for only when one can be begun."""
        numbers = self._numbers(phase)
        return (number for number in numbers if not self._folder.has(phase, number))

    def _numbers(self, phase: str) -> Iterator[int]:
        if self._meeting is None:
            yield from range(self._inputs.n_batches)
            return
        while (number := self._meeting.add(f"claimed {phase}", 1) - 1) < self._inputs.n_batches:
            yield number

    def _finish(self, phase: str, batch: Batch, compute: Callable[[Batch], Any]) -> None:
        partial = compute_block(batch, compute, self._subject.seed)
        block = Block(batch.block, batch.names, batch.broken, self._machine)
        self._folder.write(phase, block, to_text(partial))

    def _wait_for(self, phase: str, number: int) -> None:
        """Wait for a block that another process computes.

        Raises:
            CannotRunError: a process has ended, or no block at all was finished for half an hour (exit 4).
        """
        changed, since = 0, time.monotonic()
        while not self._folder.has(phase, number):
            if (now := self._folder.last_change()) != changed:
                changed, since = now, time.monotonic()
            if time.monotonic() - since > PATIENCE_S:
                message = f"no process has finished a block for {PATIENCE_S / 60:.0f} minutes"
                raise CannotRunError(message, "start the same command with --resume")
            if self._meeting is not None:
                self._meeting.check()
            time.sleep(_POLL_S)

    def take(self, phase: str, number: int) -> Block:
        """Return a finished block, and remember what the certificate has to say of it.

        Raises:
            CannotRunError: it is not there, damaged, or holds other images than it should (exit 4).
        """
        block, sha256 = self._folder.read(phase, number)
        size = self._inputs.block_size
        expected = sorted(file.name for file in self._inputs.files[number * size : (number + 1) * size])
        if block.number != number or block.names != expected:
            message = f"block {number} of '{self._folder.path}' does not hold the images it should"
            raise CannotRunError(message, "leave out --resume   and give another --out")
        self._digest.update(sha256)
        self._machines[block.machine] = None
        self._inputs.feed.broken.take(number, block.broken)
        return block

    def certificate(self, document: dict[str, Any]) -> Certificate:
        """Return what all blocks together vouch for."""
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
