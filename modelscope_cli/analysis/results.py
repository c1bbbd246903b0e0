"""The output folder of a public function; nothing is written without `out=`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TypeVar

from modelscope_cli.output_files import OutputFolder
from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.train import LrfindRecord
from modelscope_cli.report.views import figures_of

R = TypeVar("R", GradsRecord, LrfindRecord)  # of commands that write only a report


class Results:
    """An output folder, or none.

    Attributes:
        path: of the folder, for the record; None if nothing is written.
    """

    def __init__(self, out: str | PathLike[str] | None, force: bool) -> None:
        """Refuse a folder that cannot be written to, before any long computation."""
        self._folder = OutputFolder(Path(out), force) if out is not None else None
        self.path = str(self._folder.path) if self._folder is not None else None
        if self._folder is not None:
            self._folder.check()

    def begun(self) -> None:
        """Create the folder now, for files that remain even if the run fails."""
        if self._folder is not None:
            self._folder.begun()

    @contextmanager
    def open(self) -> Iterator[Path | None]:
        """Yield the folder to write to, or None; see `OutputFolder.open`."""
        if self._folder is None:
            yield None
            return
        with self._folder.open() as stage:
            yield stage

    def write(self, record: R, progress: Progress) -> R:
        """Write the report if there is a folder; return the record with the folder and its files."""
        if self.path is None:
            return record
        report = figures_of(record.command)
        record = replace(record, out_dir=self.path, files=report.FILES)
        with self.open() as stage:
            report.save_report(record, stage)
        progress.note(f"wrote {self.path}")
        return record
