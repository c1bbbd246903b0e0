"""Files on disk: written beside and renamed, so that an interrupted run leaves nothing half-written."""

import contextlib
import itertools
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError


def write_bytes(path: Path, data: bytes) -> None:
    """Write a whole file or none.

    Raises:
        CannotRunError: the folder is not there or not writable, or the disk is full (exit 4).
    """
    write_with(path, lambda beside: beside.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write a whole UTF-8 file or none; see `write_bytes`."""
    write_bytes(path, text.encode(errors="replace"))  # a file name may hold bytes that are no text


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then rename it; remove it where that fails.

    A link stays a link, and what is no plain file (a device, a named pipe) is written to as it is.
    """
    is_plain = path.is_file() or not path.exists()
    real = Path(os.path.realpath(path)) if is_plain else path
    part = real.with_name(f".{real.name}.{os.getpid()}.part{real.suffix}") if is_plain else real
    try:
        write(part)
        if is_plain:
            part.replace(real)
    except OSError as error:
        message = f"cannot write '{path}': {error.strerror or error}"
        raise CannotRunError(message, f"df -h {shlex.quote(str(path.parent))}") from error
    finally:
        if is_plain:
            with contextlib.suppress(OSError):
                part.unlink()


def check_file(path: Path) -> None:
    """Refuse a file that cannot be written, before anything long is begun.

    Raises:
        CannotRunError: it is a folder, or its folder is not there or not writable (exit 4).
    """
    folder = shlex.quote(str(path.parent))
    if path.is_dir():
        raise CannotRunError(f"cannot write '{path}': it is a folder", f"ls -ld {shlex.quote(str(path))}")
    if not path.parent.is_dir():
        raise CannotRunError(
            f"cannot write '{path}': there is no folder '{path.parent}'", f"mkdir -p {folder}"
        )
    is_plain = path.is_file() or not path.exists()
    if not os.access(path.parent if is_plain else path, os.W_OK):
        raise CannotRunError(f"cannot write '{path}': '{path.parent}' is not writable", f"ls -ld {folder}")


def make_folder(path: Path) -> None:
    """Make a folder that is written to while a command runs.

    Raises:
        CannotRunError: it cannot be made (exit 4).
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRunError(f"cannot write to '{path}': {error.strerror}", "--out ANOTHER-FOLDER") from error


class OutputFolder:
    """The folder of a command that writes pictures.

    Everything is written to a folder of its own first and moved in at the end, so that the folder holds a whole
    result or none. A folder that was not empty is only written to with `is_forced`; files in it that have
    other names are kept.
    """

    def __init__(self, path: Path, is_forced: bool) -> None:
        self.path = path
        self._is_forced = is_forced

    @contextlib.contextmanager
    def open(self) -> Iterator[Path]:
        """Give the folder to write into; on leaving without an exception its files become the result.

        Raises:
            UsageError: not empty and not forced (exit 2).
            CannotRunError: not a folder, not writable, disk full (exit 4).
        """
        self.check()
        try:
            # Within what is there already: the same file system, and nothing else is made before the end.
            stage = Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self._existing()))
        except OSError as error:
            raise self._cannot(error) from error
        try:
            yield stage
            self.path.mkdir(parents=True, exist_ok=True)
            for file in sorted(stage.iterdir()):
                file.replace(self.path / file.name)
        except OSError as error:
            raise self._cannot(error) from error
        finally:
            for file in stage.iterdir():
                file.unlink()
            stage.rmdir()

    def check(self) -> None:
        """Refuse what cannot be written to, before anything long is begun."""
        if self.path.exists() and not self.path.is_dir():
            raise CannotRunError(
                f"'--out {self.path}' is a file, not a folder", f"--out {self.path}-pictures"
            )
        if self.path.is_dir() and not self._is_forced and any(self.path.iterdir()):
            raise UsageError(f"folder '{self.path}' is not empty", f"--out {self.path} --force")
        existing = self._existing()
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            what = "not writable" if existing.is_dir() else "a file"
            raise CannotRunError(
                f"cannot write to '{self.path}': '{existing}' is {what}", "--out ANOTHER-FOLDER"
            )

    def _existing(self) -> Path:
        """Return the folder itself or the nearest one above it that is there."""
        return next(parent for parent in (self.path, *self.path.absolute().parents) if parent.exists())

    def _cannot(self, error: OSError) -> CannotRunError:
        reason = error.strerror or str(error)
        return CannotRunError(f"cannot write to '{self.path}': {reason}", "--out ANOTHER-FOLDER")


def free_folder(command: str, model: str) -> Path:
    """Return the first of `runs/<command>-<model>`, `-2`, `-3` ... that is not there."""
    name = "".join(mark if mark.isalnum() or mark in "._-" else "-" for mark in Path(model).name)
    base = Path("runs") / f"{command}-{name}"
    names = itertools.chain([base], (base.with_name(f"{base.name}-{n}") for n in itertools.count(2)))
    return next(path for path in names if not path.exists())
