"""How a command goes through its batches: alone and in order, or as blocks that are kept and shared out."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from os import PathLike
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeVar

import torch

from modelscope_cli.analysis.blocks.folder import (
    BlockFolder,
    describe_run,
    differences,
    this_machine,
    write_sums,
)
from modelscope_cli.analysis.blocks.stored_blocks import (
    PATIENCE_S,
    Rendezvous,
    SequentialBlocks,
    StoredBlocks,
)
from modelscope_cli.analysis.blocks.verifying import Verifying, being_verified, threads, threads_of_blocks
from modelscope_cli.analysis.results import Results
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.ranks import Ranks, find_ranks, is_started_by_torchrun
from modelscope_cli.records.certificate import Certificate
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.run import Notice

T = TypeVar("T")
_FOLDER, _BEGUN, _DONE = "folder", "begun", "done"
_ONE_THREAD = (
    "one thread, so that any number of processes gives the same bits: torchrun --nproc-per-node {cores} -m "
    "modelscope_cli ... uses all cores; OMP_NUM_THREADS=N sets another number"
)


class Blocks:
    """The batches of one call of a public function.

    Attributes:
        out: the folder of the result, for the record; None where there is none.
        has_folder: whether a folder is written of the result, here or by another process, or was once.
        is_shared: whether other processes make the same call.
        is_first: whether this process writes what is to be written; of several, one does.
    """

    def __init__(
        self,
        out: str | PathLike[str] | None = None,
        *,
        force: bool = False,
        resume: bool = False,
        share: bool = False,
        keep: bool = True,
    ) -> None:
        """Refuse what cannot be written to, before anything long is begun.

        Args:
            out: for the report and, with `keep`, the finished blocks; `force`: it need not be empty.
            resume: go on with the blocks that are in `out`.
            share: whether the other processes that torchrun has started make the same call.
        """
        self._verified = being_verified()
        self.is_shared = share and is_started_by_torchrun() and self._verified is None
        self._ranks = find_ranks() if self.is_shared else Ranks()
        self.is_first = self._ranks.is_first and self._verified is None
        self.out = os.fspath(out) if out is not None else None
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
                "several machines need a folder they share", "--out FOLDER   that all machines share"
            )
        if not self.is_first:
            return
        if resume and not self._has_begun():
            message = f"'{self.out}' holds no run to continue"
            raise UsageError(message, "leave out --resume   starts one")
        if self._has_begun() and not self._is_again and not force:
            message = f"folder '{self.out}' holds the blocks of another run"
            raise UsageError(message, "--resume or --force   continues it, or starts again")

    @contextmanager
    def begin(
        self, subject: Subject, options: Mapping[str, Any], keywords: Mapping[str, Any], alone: str = ""
    ) -> Iterator[None]:
        """Decide how the batches of a subject are gone through, and do so in here.

        Args:
            options: what was asked for and changes a number, beside the model and the images.
            keywords: what the public function has to be given to compute the same again.
            alone: why only one process can do it, in one go; empty where that is not so.
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
        self._refuse_alone(alone)
        if alone or not (self.is_shared or (self._folder is not None and subject.inputs.n_batches > 1)):
            if alone and self._folder is not None:
                subject.progress.note(f"no blocks are kept: {alone}")
            yield SequentialBlocks(subject)
            return
        n_threads = threads_of_blocks(subject.loaded.device)
        if n_threads < torch.get_num_threads() and not self.is_shared:
            subject.progress.note(_ONE_THREAD.format(cores=os.cpu_count()))
        with threads(n_threads), self._agreed_folder() as folder:
            self._document = describe_run(subject, options, keywords)
            self._agree(folder)
            yield StoredBlocks(folder, subject, this_machine(subject.loaded), self._meeting)
            self._wait_for_others()

    def _refuse_alone(self, alone: str) -> None:
        if alone and self.is_shared:
            raise UsageError(f"{alone}, so several processes cannot share it", "start one without torchrun")
        if alone and self._is_again:
            raise UsageError(f"{alone}, so there are no blocks to continue with", "leave out --resume")

    @property
    def is_in_order(self) -> bool:
        """Whether this process goes through all batches itself, the first one first."""
        return isinstance(self._way, SequentialBlocks)

    def over(self, phase: str, compute: Callable[[Batch], T], kind: type[T]) -> Iterator[T]:
        """Give the partial results of all batches, in their order, whoever computed them.

        Args:
            phase: a word for what is done, of a run one after the other; letters and blanks.
            compute: makes the partial result of a batch; depends on nothing that was computed in this phase.
            kind: the annotation of a partial result, see `exact`.
        """
        return self._way.over(phase, compute, kind)

    def certificate(self) -> Certificate | None:
        """Return what the result vouches for; None where no blocks were made."""
        if isinstance(self._way, SequentialBlocks):
            return None
        return self._way.certificate(self._document)

    def warnings(self) -> tuple[Notice, ...]:
        """Return what makes a result of blocks mean less than it seems."""
        certificate = self.certificate()
        if certificate is None or len(certificate.machines) == 1:
            return ()
        machines = "; ".join(machine.words for machine in certificate.machines)
        message = (
            f"the blocks were computed in {len(certificate.machines)} ways, which differ in the last bits: "
        )
        return (Notice("several_machines", message + machines),)

    @contextmanager
    def write(self) -> Iterator[Path | None]:
        """Give where to write the report, if at all, and say that it is written; see `Results.open`.

        Beside blocks, the hashes of all files of the report are written, which `verify` and `sha256sum -c` read.
        """
        with self._results.open() as stage:
            yield stage
            if stage is not None and isinstance(self._way, StoredBlocks):
                write_sums(stage)
        if self._results.path is not None:
            self._progress.note(f"wrote {self._results.path}")

    @contextmanager
    def _agreed_folder(self) -> Iterator[BlockFolder]:
        """Give the folder of the blocks: what was asked for, else one for as long as the run lasts."""
        if self._folder is not None:
            yield self._folder
            return
        meeting = self._meeting
        if meeting is None or self.is_first:
            path = Path(tempfile.mkdtemp(prefix="modelscope-"))
        else:
            path = Path(meeting.hear(_FOLDER, PATIENCE_S))
        try:
            if meeting is not None and self.is_first:
                meeting.tell(_FOLDER, str(path))
            yield BlockFolder(path)
        finally:
            if self.is_first:
                rmtree(path, ignore_errors=True)

    def _agree(self, folder: BlockFolder) -> None:
        """Begin the folder, or hold this run against the one that is in it."""
        if self.is_first and not self._is_again:
            folder.clear()
            self._results.begun()
            folder.begin(self._document)
        elif self.is_first:
            folder.tidy()
        if self._meeting is not None and self.is_first:
            self._meeting.tell(_BEGUN, "yes")
        elif self._meeting is not None:
            self._meeting.hear(_BEGUN, PATIENCE_S)
        found = differences(self._document, folder.document() or {})
        if found:
            message = f"'{folder.path}' holds blocks of another run, which differs in {', '.join(found)}"
            raise UsageError(
                message,
                "leave out --resume   and --force starts again"
                if self._is_again
                else "--force   starts again",
            )

    def _wait_for_others(self) -> None:
        """Let the first process be the last to leave: the folder, or the store they meet in, may go with it."""
        if self._meeting is None:
            return
        with suppress(CannotRunError):  # those who were killed read no more
            n_done = self._meeting.add(_DONE, 1)
            while self.is_first and n_done < self._ranks.world:
                self._meeting.check()
                time.sleep(0.02)
                n_done = self._meeting.add(_DONE, 0)


def _why_alone(subject: Subject) -> str:
    """Say why inputs cannot be cut into blocks; nothing where they can."""
    inputs, given = subject.inputs, subject.given
    if inputs.make_blocks is None:
        return f"{given.name} is not a list of image files"
    if inputs.files.has_given:
        return f"{given.name} is not in a file"
    if inputs.n_listed != len(inputs.files):
        return "the images are one sample"
    return ""
