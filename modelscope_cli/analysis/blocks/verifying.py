"""Recomputation of blocks and comparison with the stored ones."""

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from modelscope_cli.analysis.blocks.folder import (
    TIMING,
    BlockFolder,
    differences,
    from_plain,
    this_machine,
    to_text,
)
from modelscope_cli.analysis.blocks.stored_blocks import StoredBlocks, compute_block
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.certificate import Certificate, Machine, VerifiedBlock

_SAID = "OMP_NUM_THREADS"  # torchrun sets it to 1 for several processes, unless the user has set it


def threads_of_blocks(device: torch.device) -> int:
    """Return the number of threads for blocks: the user's setting, else one, like torchrun.

    On the CPU the bits of a result depend on it.
    """
    return torch.get_num_threads() if device.type != "cpu" or _SAID in os.environ else 1


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Use `n` threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


T = TypeVar("T")
# For results of another kind of machine; kernels differ by some 1e-6 per layer.
TOLERANCE = 1e-3
_CURRENT: ContextVar["Verifying | None"] = ContextVar("verifying", default=None)


class Verifying:
    """Recomputes a sample of the blocks in a folder, and yields the stored partial results of all.

    Attributes:
        checked: the comparison of each recomputed block, in every phase.
        differences: descriptions of what has changed since the blocks were computed.
    """

    def __init__(self, folder: BlockFolder, sample: int, seed: int) -> None:
        self._folder = folder
        self._n_sampled, self._seed = sample, seed
        self.checked: list[VerifiedBlock] = []
        self.differences: list[str] = []
        self.machine: Machine
        self._subject: Subject
        self._kept: StoredBlocks

    @contextmanager
    def begin(self, subject: Subject, document: dict[str, Any]) -> Iterator[None]:
        """Compare this run with the one in the folder, and use the same number of threads."""
        there = self._folder.document() or {}
        changes = differences(document, there)
        if document["list_sha256"] != there.get("list_sha256"):
            message = f"'{self._folder.path}' is another run, which differs in {', '.join(changes)}"
            raise CannotRunError(message, "run it in the same folder, with the same files")
        self.differences += [f"the runs differ in {change}" for change in changes]
        self._subject = subject
        with threads(there.get("threads") or torch.get_num_threads()):
            self.machine = this_machine(subject.loaded)
            self._kept = StoredBlocks(self._folder, subject, self.machine, None)
            yield

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Recompute the sample, then yield the stored partial results of all blocks."""
        inputs = self._subject.inputs
        assert inputs.make_blocks is not None
        self._refuse_unfinished(phase, inputs.n_batches)
        n = min(self._n_sampled, inputs.n_batches)
        numbers = sorted(random.Random(self._seed).sample(range(inputs.n_batches), n))
        for batch in self._subject.track(inputs.make_blocks(numbers), phase):
            self._compare(phase, batch, to_text(compute_block(batch, compute, self._subject.seed)))
        for number in range(inputs.n_batches):
            block = self._kept.take(phase, number)
            if block.result is not None:
                yield from_plain(kind, block.result)

    def certificate(self, document: dict[str, Any]) -> Certificate:
        """Return the certificate of the stored blocks."""
        return self._kept.certificate(self._folder.document() or document)

    def _refuse_unfinished(self, phase: str, n_blocks: int) -> None:
        missing = [number for number in range(n_blocks) if not self._folder.has(phase, number)]
        if missing:
            message = (
                f"'{self._folder.path}' is not finished: {len(missing):,} of {n_blocks:,} blocks are missing"
            )
            raise CannotRunError(message, "start the command that began it again, with --resume")

    def _compare(self, phase: str, batch: Batch, text: str) -> None:
        block, _ = self._folder.read(phase, batch.block)
        is_same_machine = block.machine == self.machine
        gap = gap_between(block.result, json.loads(text))
        is_equal = gap == 0.0
        passed = is_equal if is_same_machine else gap is not None and gap <= TOLERANCE
        self.checked.append(
            VerifiedBlock(phase, batch.block, batch.n_images, is_same_machine, is_equal, gap, passed)
        )


def gap_between(value: Any, other: Any) -> float | None:
    """Return the largest difference between numbers of two plain values, relative to the largest of their list.

    0 if all bits are equal; None if structure or text differ.
    """
    if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
        return _largest([(value[key], other[key]) for key in value if key != TIMING])
    if isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        return _largest(list(zip(value, other, strict=True)))
    return 0.0 if type(value) is type(other) and value == other else None


def _largest(pairs: list[tuple[Any, Any]]) -> float | None:
    numbers: list[tuple[Any, Any]] = []
    gaps: list[float] = []
    for pair in pairs:
        if all(type(value) in (int, float) for value in pair):
            numbers.append(pair)
        elif (gap := gap_between(*pair)) is not None:
            gaps.append(gap)
        else:
            return None
    scale = max((abs(value) for pair in numbers for value in pair), default=0.0)
    return max([*gaps, *(abs(a - b) / scale if a != b else 0.0 for a, b in numbers)], default=0.0)


@contextmanager
def verifying(check: Verifying) -> Iterator[None]:
    """Make public functions called in this context recompute the blocks of `check`."""
    token = _CURRENT.set(check)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def being_verified() -> Verifying | None:
    """Return the verification in progress; None if there is none."""
    return _CURRENT.get()
