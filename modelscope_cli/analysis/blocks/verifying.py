"""Blocks that are computed again and held against what lies in a folder."""

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from modelscope_cli.analysis.blocks.folder import TIMING, BlockFolder, differences, this_machine
from modelscope_cli.analysis.blocks.lossless_json import from_plain, to_text
from modelscope_cli.analysis.blocks.stored_blocks import StoredBlocks, compute_block
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.certificate import Certificate, Machine, VerifiedBlock

_SAID = (
    "OMP_NUM_THREADS"  # torchrun sets it to 1 where it starts several processes and nobody has said otherwise
)


def threads_of_blocks(device: torch.device) -> int:
    """Return with how many threads blocks are computed: as many as somebody has said, else one, as torchrun has it.

    With another number the same block has other bits; on an accelerator it makes no difference.
    """
    return torch.get_num_threads() if device.type != "cpu" or _SAID in os.environ else 1


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Compute with this many threads in here."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


T = TypeVar("T")
# Of numbers that another kind of machine computed. Kernels differ by some 1e-6 a layer.
TOLERANCE = 1e-3
_CURRENT: ContextVar["Verifying | None"] = ContextVar("verifying", default=None)


class Verifying:
    """Computes some of the blocks in a folder again, and gives the partial results of all as they are there.

    Attributes:
        checked: what came of each block that was computed again, in every phase.
        differences: what is not as it was when the blocks were computed.
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
        """Hold the run that is computed again against the one in the folder; use as many threads as it did."""
        there = self._folder.document() or {}
        found = differences(document, there)
        if document["list_sha256"] != there.get("list_sha256"):
            message = f"'{self._folder.path}' is another run, which differs in {', '.join(found)}"
            raise CannotRunError(message, "run it from the same folder, with the files as they were")
        self.differences += [f"the runs differ in {one}" for one in found]
        self._subject = subject
        with threads(there.get("threads") or torch.get_num_threads()):
            self.machine = this_machine(subject.loaded)
            self._kept = StoredBlocks(self._folder, subject, self.machine, None)
            yield

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Compute the sample again, then give the partial results of all blocks as they lie in the folder."""
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
        """Return what the blocks vouch for as they lie in the folder."""
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


def gap_between(one: Any, other: Any) -> float | None:
    """Return the largest difference of two numbers in two plain values, as a share of the largest beside them.

    0 means that they are equal to the last bit; None that they are not of one shape, or hold other words.
    """
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return _largest([(one[key], other[key]) for key in one if key != TIMING])
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return _largest(list(zip(one, other, strict=True)))
    return 0.0 if type(one) is type(other) and one == other else None


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
    """Let the function that is called in here compute again what `check` asks for."""
    token = _CURRENT.set(check)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def being_verified() -> Verifying | None:
    """Return what the function that is running was called for; None where it computes a result of its own."""
    return _CURRENT.get()
