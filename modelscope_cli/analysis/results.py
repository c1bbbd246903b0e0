"""The folder a public function writes where it was given `out=`; nothing is written where it was not."""

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from modelscope_cli.report.folder import OutputFolder


class Results:
    """A folder, or none.

    Attributes:
        path: of the folder, for the record; None where nothing is to be written.
    """

    def __init__(self, out: str | PathLike[str] | None, force: bool) -> None:
        """Refuse a folder that cannot be written to, before anything long is begun.

        Raises:
            UsageError: not empty and not forced (exit 2).
            CannotRunError: not a folder, or not writable (exit 4).
        """
        self._folder = OutputFolder(Path(out), force) if out is not None else None
        self.path = str(self._folder.path) if self._folder is not None else None
        if self._folder is not None:
            self._folder.check()

    @contextmanager
    def open(self) -> Iterator[Path | None]:
        """Give where to write, if at all; what is there at the end becomes the folder. See `OutputFolder.open`."""
        if self._folder is None:
            yield None
            return
        with self._folder.open() as stage:
            yield stage
