"""Iteration over batches: in one process, as stored blocks shared by several, or recomputed to verify these."""

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from os import PathLike
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

import torch

from modelscope_cli import interrupts
from modelscope_cli.analysis.blocks.folder import (
    TIMING,
    BlockFolder,
    describe_run,
    differences,
    from_plain,
    this_machine,
    to_text,
    write_sums,
)
from modelscope_cli.analysis.blocks.stored_blocks import (
    Rendezvous,
    SequentialBlocks,
    StoredBlocks,
    compute_block,
)
from modelscope_cli.analysis.subject import Results, Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.ranks import Ranks, find_ranks, is_started_by_torchrun
from modelscope_cli.records.certificate import Certificate, Machine, VerifiedBlock
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.run import Notice

T = TypeVar("T")
_FOLDER, _BEGUN, _DONE = "folder", "begun", "done"
_ONE_THREAD = (
    "one thread, so that processes do not change the result: torchrun --nproc-per-node {cores} -m "
    "modelscope_cli ... uses all cores; OMP_NUM_THREADS=N sets another number"
)


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
            out: folder for the report and, with `keep`, the finished blocks; `force` allows one that is not empty.
            resume: continue with the blocks in `out`.
            share: whether the other processes that torchrun has started make the same call.
        """
        self._verified = _CURRENT.get()
        # Whether other processes make the same call
        self.is_shared = share and is_started_by_torchrun() and self._verified is None
        self._ranks = find_ranks() if self.is_shared else Ranks()
        # Whether this process writes the results
        self.is_first = self._ranks.is_first and self._verified is None
        self.out = os.fspath(out) if out is not None else None  # the folder of the result; None without one
        # Whether the result has a folder, written here, by another process or earlier
        self.has_folder = self.out is not None or self.is_shared or self._verified is not None
        self._folder = BlockFolder(Path(self.out)) if self.out is not None and keep else None
        self._is_again = resume or (self._ranks.attempt > 0 and self._has_begun())
        self._check(resume, force)
        self._meeting = Rendezvous(self._ranks) if self._ranks.world > 1 else None
        self._results = Results(out if self.is_first else None, force or self._is_again)
        self._progress: Progress = SILENT
        self._way: SequentialBlocks | StoredBlocks | Verifying
        self._document: dict[str, Any] = {}

    def _has_begun(self) -> bool:
        return self._folder is not None and self._folder.document() is not None

    def _check(self, resume: bool, force: bool) -> None:
        if resume and self.out is None:
            raise UsageError("--resume needs the folder of the run to continue", "--resume --out DIR")
        if self.is_shared and self._folder is None and self._ranks.local_world != self._ranks.world:
            raise UsageError(
                "several machines need a shared folder", "--out FOLDER   that all machines share"
            )
        if not self.is_first:
            return
        if resume and not self._has_begun():
            message = f"'{self.out}' contains no run to continue"
            raise UsageError(message, "leave out --resume   starts one")
        if self._has_begun() and not self._is_again and not force:
            message = f"folder '{self.out}' contains the blocks of another run"
            raise UsageError(message, "--resume or --force   continues it, or starts again")

    @contextmanager
    def begin(
        self, subject: Subject, options: Mapping[str, Any], keywords: Mapping[str, Any], alone: str = ""
    ) -> Iterator[None]:
        """Choose how to iterate over the batches of a subject, for the duration of the context.

        Args:
            options: everything but the model and the images that changes a number.
            keywords: the arguments of the public function that repeat the computation.
            alone: why one process has to compute everything in one go; empty if it need not.
        """
        self._progress = subject.progress
        is_done = False
        try:
            with self._way_of(subject, options, keywords, alone or _why_alone(subject)) as way:
                self._way = way
                yield
            is_done = True
        finally:
            if self._meeting is not None:
                self._meeting.leave(is_done=is_done)

    @contextmanager
    def _way_of(
        self, subject: Subject, options: Mapping[str, Any], keywords: Mapping[str, Any], alone: str
    ) -> Iterator["SequentialBlocks | StoredBlocks | Verifying"]:
        if self._verified is not None:
            with self._verified.begin(subject, describe_run(subject, options, keywords)):
                yield self._verified
            return
        if alone and self.is_shared:
            raise UsageError(
                f"{alone}, so processes cannot share the work", "start a single process, without torchrun"
            )
        if alone and self._is_again:
            raise UsageError(f"{alone}, so there are no blocks to continue with", "leave out --resume")
        has_parts = self._folder is not None and (subject.inputs.n_batches > 1 or self._is_again)
        if alone or not (self.is_shared or has_parts):
            if alone and self._folder is not None:
                subject.progress.note(f"no blocks are stored: {alone}")
            yield SequentialBlocks(subject)
            return
        n_threads = threads_of_blocks(subject.loaded.device)
        if n_threads < torch.get_num_threads() and not self.is_shared:
            subject.progress.note(_ONE_THREAD.format(cores=os.cpu_count()))
        with threads(n_threads), self._agreed_folder() as folder:
            self._document = describe_run(subject, options, keywords)
            self._agree(folder)
            interrupts.resumable = self.out or ""
            yield StoredBlocks(folder, subject, this_machine(subject.loaded), self._meeting)
            self._wait_for_others()

    @property
    def is_in_order(self) -> bool:
        """Whether this process goes through all batches itself, the first one first."""
        return isinstance(self._way, SequentialBlocks)

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Yield the partial results of all batches, in order, from all processes.

        Args:
            phase: a name, unique in the run; letters and blanks.
            compute: returns the partial result of a batch, independent of the phase's other batches.
            kind: the type annotation of a partial result, see `folder.from_plain`.
        """
        return self._way.over(phase, compute, kind)

    def certificate(self) -> Certificate | None:
        """Return the certificate of the result; None without blocks."""
        if isinstance(self._way, SequentialBlocks):
            return None
        return self._way.certificate(self._document)

    def warnings(self) -> tuple[Notice, ...]:
        """Return a warning if the blocks come from different kinds of machines."""
        certificate = self.certificate()
        if certificate is None or len(certificate.machines) == 1:
            return ()
        machines = "; ".join(machine.words for machine in certificate.machines)
        message = (
            f"the blocks come from {len(certificate.machines)} kinds of machines, so last bits may differ: "
        )
        return (Notice("several_machines", message + machines),)

    @contextmanager
    def write(self) -> Iterator[Path | None]:
        """Yield the folder for the report, if any, and note that it was written; see `Results.open`.

        With blocks, also write the hashes of the report's files, for `verify` and `sha256sum -c`.
        """
        with self._results.open(self._progress) as stage:
            yield stage
            if stage is not None and isinstance(self._way, StoredBlocks):
                write_sums(stage)

    @contextmanager
    def _agreed_folder(self) -> Iterator[BlockFolder]:
        """Yield the folder of the blocks, a temporary one if none was requested."""
        if self._folder is not None:
            yield self._folder
            return
        meeting = self._meeting
        if meeting is None or self.is_first:
            path = Path(tempfile.mkdtemp(prefix="modelscope-"))
        else:
            path = Path(meeting.hear(_FOLDER))
        try:
            if meeting is not None and self.is_first:
                meeting.tell(_FOLDER, str(path))
            yield BlockFolder(path)
        finally:
            if self.is_first:
                rmtree(path, ignore_errors=True)

    def _agree(self, folder: BlockFolder) -> None:
        """Start the folder, or check that its run is the same as this one."""
        if self.is_first and not self._is_again:
            folder.clear()
            self._results.begun()
            folder.begin(self._document)
        elif self.is_first:
            folder.tidy()
        if self._meeting is not None and self.is_first:
            self._meeting.tell(_BEGUN, "yes")
        elif self._meeting is not None:
            self._meeting.hear(_BEGUN)
        changes = differences(self._document, folder.document() or {})
        if changes:
            message = f"'{folder.path}' contains blocks of another run, which differs in {', '.join(changes)}"
            raise UsageError(
                message,
                "leave out --resume   and --force starts again"
                if self._is_again
                else "--force   starts again",
            )

    def _wait_for_others(self) -> None:
        """Make the first process end last, because it owns the folder or the store."""
        if self._meeting is None:
            return
        with suppress(CannotRunError):  # killed processes read no more
            n_done = self._meeting.add(_DONE, 1)
            while self.is_first and n_done < self._ranks.world:
                self._meeting.check()
                time.sleep(0.02)
                n_done = self._meeting.add(_DONE, 0)


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


def threads_of_blocks(device: torch.device) -> int:
    """Return the number of threads for blocks: the user's setting, else one, like torchrun.

    On the CPU the bits of a result depend on it.
    """
    return torch.get_num_threads() if device.type != "cpu" or _N_THREADS in os.environ else 1


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Use `n` threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# For results of another kind of machine; kernels differ by some 1e-6 per layer.
TOLERANCE = 1e-3
_CURRENT: ContextVar["Verifying | None"] = ContextVar("verifying", default=None)


class Verifying:
    """Recomputes a sample of the blocks in a folder, and yields the stored partial results of all."""

    def __init__(self, folder: BlockFolder, sample: int, seed: int) -> None:
        self._folder = folder
        self._n_sampled, self._seed = sample, seed
        self.checked: list[VerifiedBlock] = []  # the comparison of each recomputed block, in every phase
        self.differences: list[str] = []  # descriptions of what has changed since the blocks were computed
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
