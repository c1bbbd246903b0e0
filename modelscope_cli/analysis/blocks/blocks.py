"""Iteration over batches: in one process, or as stored blocks that any number of processes share."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

import torch

from modelscope_cli import interrupts
from modelscope_cli.analysis.blocks.folder import Block, BlockFolder
from modelscope_cli.analysis.blocks.rendezvous import Rendezvous
from modelscope_cli.analysis.blocks.run_key import differences, run_key
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.models.architecture import seeded
from modelscope_cli.output_files import OutputFolder
from modelscope_cli.ranks import Ranks, find_ranks, is_started_by_torchrun
from modelscope_cli.records.naming import LAST_SEED
from modelscope_cli.records.progress import SILENT, Progress

T = TypeVar("T")
_ONE_THREAD = (
    "one thread, so that processes do not change the result: torchrun --nproc-per-node {cores} -m "
    "modelscope_cli ... uses all cores; OMP_NUM_THREADS=N sets a different number"
)


class ForEachBlock(Protocol):
    """A function that yields the partial result of each batch, in order; see `Blocks.over`."""

    def __call__(self, phase: str, compute: Callable[[Batch], T], kind: type[T], /) -> Iterator[T]: ...


class Blocks:
    """The batches of one call of a public function."""

    def __init__(
        self,
        out: str | PathLike[str] | None = None,
        *,
        force: bool = False,
        resume: bool = False,
        share: bool = False,
        keep: bool = True,
    ) -> None:
        """Check the folder before any long computation.

        Args:
            out: folder for the finished blocks, where a command saves its report in the end; `force` allows one
                that is not empty.
            resume: continue with the blocks in `out`.
            share: whether the other processes that torchrun has started make the same call.
            keep: whether blocks are stored in `out`.
        """
        self._is_shared = share and is_started_by_torchrun()
        self._ranks = find_ranks() if self._is_shared else Ranks()
        self.is_first = self._ranks.is_first  # whether this process writes what all have computed
        self.out = os.fspath(out) if out is not None else None
        self._folder = BlockFolder(Path(self.out)) if self.out is not None and keep else None
        has_run = self._folder is not None and self._folder.key() is not None
        self._is_again = resume or (has_run and self._ranks.attempt > 0)
        self._check(has_run, resume, force)
        self._output = None
        if self.out is not None and self.is_first:
            self._output = OutputFolder(Path(self.out), force or self._is_again)
            self._output.check()
        self._rendezvous = Rendezvous(self._ranks) if self._ranks.world > 1 else None
        self._progress: Progress = SILENT
        self._subject: Subject
        self._stored: BlockFolder | None = None  # None where this process computes all batches in order

    def _check(self, has_run: bool, resume: bool, force: bool) -> None:
        if resume and self.out is None:
            raise UsageError("--resume needs the folder of the run to continue", "--resume --out DIR")
        if self._is_shared and self._folder is None and self._ranks.local_world != self._ranks.world:
            raise UsageError(
                "several machines need a shared folder", "--out FOLDER   that all machines share"
            )
        if not self.is_first:
            return
        if resume and not has_run:
            message = f"'{self.out}' contains no run to continue"
            raise UsageError(message, "leave out --resume   to start one")
        if has_run and not self._is_again and not force:
            message = f"folder '{self.out}' contains the blocks of another run"
            raise UsageError(message, "--resume   continues it; --force starts again")

    @contextmanager
    def begin(self, subject: Subject, options: Mapping[str, Any], alone: str = "") -> Iterator[None]:
        """Choose how to iterate over the batches of a subject, for the duration of the context.

        Args:
            options: everything but the model and the images that changes a number.
            alone: why one process has to compute everything in one go; empty if it need not.
        """
        self._subject, self._progress = subject, subject.progress
        alone = alone or _why_alone(subject)
        if alone and self._is_shared:
            raise UsageError(
                f"{alone}, so processes cannot share the work", "start a single process, without torchrun"
            )
        if alone and self._is_again:
            raise UsageError(f"{alone}, so there are no blocks to continue with", "leave out --resume")
        has_parts = self._folder is not None and (subject.inputs.n_batches > 1 or self._is_again)
        if alone or not (self._is_shared or has_parts):
            if alone and has_parts:
                subject.progress.note(f"no blocks are stored: {alone}")
            yield
            return
        # On the CPU the bits of a result depend on it: the user's setting, else one, like torchrun
        is_set = subject.loaded.device.type != "cpu" or _N_THREADS in os.environ
        n_threads = torch.get_num_threads() if is_set else 1
        if n_threads < torch.get_num_threads() and not self._is_shared:
            subject.progress.note(_ONE_THREAD.format(cores=os.cpu_count()))
        with threads(n_threads), self._open_folder(run_key(subject, options)) as self._stored:
            interrupts.resumable = self.out or ""
            yield
            if self._rendezvous is not None:
                self._rendezvous.finish()

    @contextmanager
    def _open_folder(self, key: dict[str, Any]) -> Iterator[BlockFolder]:
        """Yield the folder of the blocks, a temporary one if none was requested; the first process starts it."""
        is_temporary = self._folder is None and self.is_first
        # Other processes may still write into it at the end.
        made = TemporaryDirectory(prefix="modelscope-", ignore_cleanup_errors=True) if is_temporary else None
        with made or nullcontext("") as temporary:
            folder = self._folder or BlockFolder(Path(temporary))
            if self.is_first and not self._is_again:
                if self._output is not None:
                    self._output.begun()
                folder.start(key)
            elif self.is_first and not differences(key, folder.key() or {}):
                for name in folder.remove_damaged():
                    self._progress.note(f"block {name} is damaged, and is computed again")
            if self._rendezvous is not None and self.is_first:
                self._rendezvous.tell("folder", str(folder.path))
            elif self._rendezvous is not None:
                folder = BlockFolder(Path(self._rendezvous.hear("folder")))
            if changes := differences(key, folder.key() or {}):
                message = (
                    f"'{folder.path}' contains blocks of another run, which differs in {', '.join(changes)}"
                )
                start_again = "leave out --resume   and add --force to start again"
                raise UsageError(message, start_again if self._is_again else "--force   starts again")
            yield folder

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Yield the partial results of all batches, in order, from all processes.

        Args:
            phase: a name, unique in the run; letters and blanks.
            compute: returns the partial result of a batch, independent of the phase's other batches.
            kind: the annotated type of a partial result: numbers, words, tensors, and dataclasses of these.
        """
        subject, folder = self._subject, self._stored
        if folder is None:
            has_blocks = subject.inputs.make_blocks is not None
            for batch in subject.track(subject.inputs, phase):
                yield compute_block(batch, compute, subject.seed) if has_blocks else compute(batch)
            return
        for block in subject.track(self._stored_blocks(folder, phase, compute, kind), phase):
            if block.result is not None:
                yield block.result

    def _stored_blocks(
        self, folder: BlockFolder, phase: str, compute: Callable[[Batch], T], kind: type[T]
    ) -> Iterator[Block[T]]:
        """Compute blocks until none is left, and yield those of all processes in order."""
        subject, inputs = self._subject, self._subject.inputs
        assert inputs.make_blocks is not None
        n_read = 0
        for batch in inputs.make_blocks(self._claimed(folder, phase)):
            result = compute_block(batch, compute, subject.seed) if batch.n_images else None
            folder.write(phase, batch.block, Block(batch.n_images, batch.broken, result))
            while n_read < inputs.n_batches and folder.has(phase, n_read):
                yield self._read(folder, phase, n_read, kind)
                n_read += 1
        for number in range(n_read, inputs.n_batches):
            if self._rendezvous is not None:
                self._rendezvous.wait_until(partial(folder.has, phase, number))
            yield self._read(folder, phase, number, kind)

    def _claimed(self, folder: BlockFolder, phase: str) -> Iterator[int]:
        """Yield the numbers of unfinished blocks for this process, each claimed when it is asked for."""
        rendezvous, n = self._rendezvous, self._subject.inputs.n_batches
        numbers = range(n) if rendezvous is None else rendezvous.numbers(f"claimed {phase}", n)
        yield from (number for number in numbers if not folder.has(phase, number))

    def _read(self, folder: BlockFolder, phase: str, number: int, kind: type[T]) -> Block[T]:
        block = folder.read(phase, number, kind)
        self._subject.inputs.feed.broken.take(block.broken)
        return block


def _why_alone(subject: Subject) -> str:
    """Say why inputs cannot be split into blocks; empty if they can."""
    inputs, python_inputs = subject.inputs, subject.given
    if inputs.make_blocks is None:
        return f"{python_inputs.name} is not a list of image files"
    if inputs.files.has_given:
        return f"{python_inputs.name} is not in a file"
    if inputs.n_listed != len(inputs.files):
        return "the images together form one input"
    return ""


_N_THREADS = "OMP_NUM_THREADS"  # torchrun sets it to 1 for several processes, unless the user has set it


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Use `n` threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compute_block(batch: Batch, compute: Callable[[Batch], T], seed: int) -> T:
    """Compute a block that has images under its own seed, so that its result does not depend on other blocks."""
    with seeded((seed + batch.block) % (LAST_SEED + 1)):
        return compute(batch)
