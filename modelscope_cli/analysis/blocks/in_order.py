"""Batches that one process goes through in order; nothing is written."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from modelscope_cli.analysis.subject import Subject
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.bounds import LAST_SEED

T = TypeVar("T")


class Over(Protocol):
    """Goes through all batches and gives the partial result of each, in their order; see `Blocks.over`."""

    def __call__(self, phase: str, compute: Callable[[Batch], T], kind: type[T], /) -> Iterator[T]: ...


class InOrder:
    """Goes through the batches as they come: the same results in the same order as of blocks that are kept."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Give the partial result of every batch."""
        has_blocks = self._subject.inputs.make_blocks is not None
        for batch in self._subject.track(self._subject.inputs, phase):
            partial = compute_block(batch, compute, self._subject.seed) if has_blocks else compute(batch)
            if partial is not None:
                yield partial


def compute_block(batch: Batch, compute: Callable[[Batch], T], seed: int) -> T | None:
    """Compute a block with random numbers of its own: what a model draws depends neither on the process nor on
    the blocks before. None of a block without images."""
    if not batch.n_images:
        return None
    with seeded((seed + batch.block) % (LAST_SEED + 1)):
        return compute(batch)
