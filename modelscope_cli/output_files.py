"""Atomic output: files are written under a temporary name and renamed.

A temporary name looks like `.report.json.4711-1a2b3c4d.part`. A killed run may leave one behind; it is never read,
never counts as content of a folder, and may be deleted.
"""

import contextlib
import itertools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.interrupts import obey, undisturbed
from modelscope_cli.paths import is_open
from modelscope_cli.records.run import invocation

# Folders that this process removes at its end if they are still empty.
_claimed: list[Path] = []
_UNFINISHED = re.compile(r"\..*\.\d+-[0-9a-f]{8}\.part")


class CannotWriteError(CannotRunError):
    """A file could not be written: the disk is full, or the folder was removed. Exit code 4."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot write '{path}': {reason}", f"df -h {shlex.quote(str(_existing(path)))}")
        self.path, self.reason = path, reason


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    write_with(path, lambda beside: beside.write_bytes(data))


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file atomically."""
    write_bytes(path, text.encode(errors="replace"))  # a file name may hold bytes that are not text


def write_with(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary file next to `path`, then rename it; remove it on failure.

    A link is kept, and a special file such as a device is written to directly.
    """
    obey()
    is_plain = path.is_file() or not path.exists()
    real = Path(os.path.realpath(path)) if is_plain else path
    part = _beside(real) if is_plain else real
    try:
        write(part)
        if is_plain:
            part.replace(real)
    except OSError as error:
        raise CannotWriteError(path, error.strerror or str(error)) from error
    finally:
        if is_plain:
            with undisturbed(), contextlib.suppress(OSError):
                part.unlink()


def _beside(path: Path) -> Path:
    """Return a temporary name for `path` that is unique across processes."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}-{os.urandom(4).hex()}.part")


def is_unfinished(path: Path) -> bool:
    """Tell whether this is the temporary file of a running or killed run."""
    return _UNFINISHED.fullmatch(path.name) is not None


def check_file(path: Path, is_forced: bool) -> None:
    """Refuse a file that cannot or should not be written, before any long work.

    Args:
        is_forced: whether an existing file may be replaced. Devices are always written to.
    """
    here, folder = shlex.quote(str(path)), shlex.quote(str(path.parent))
    if path.is_dir():
        raise CannotRunError(f"cannot write '{path}': it is a folder", f"ls -ld {here}")
    if (path.is_fifo() or path.is_socket()) and not is_open(path):
        kind = "a named pipe" if path.is_fifo() else "a socket"
        raise CannotRunError(f"cannot write '{path}': it is {kind}, not a file", f"ls -l {here}")
    if not path.parent.is_dir():
        message = f"cannot write '{path}': there is no folder '{path.parent}'"
        raise CannotRunError(message, f"mkdir -p {folder}")
    is_plain = path.is_file() or not path.exists()
    if not os.access(path.parent if is_plain else path, os.W_OK):
        raise CannotRunError(f"cannot write '{path}': '{path.parent}' is not writable", f"ls -ld {folder}")
    if path.is_file() and not is_forced:
        raise UsageError(f"'{path}' already exists", _again())


def _again() -> str:
    """Return how to replace a file: the command line with --force, or a keyword argument."""
    if not invocation().argv:
        return "force=True"
    command, *rest = invocation().argv
    return shlex.join(["modelscope", command, "--force", *rest])


def make_folder(path: Path, hint: str = "--out FOLDER") -> None:
    """Make a folder for writing while a command runs. `hint`: option to name another folder."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotRunError(f"cannot write to '{path}': {error.strerror}", hint) from error


class OutputFolder:
    """The output folder of a command.

    Everything is written to a staging folder and moved in at the end, so that the folder holds a complete result or
    none, except for files written to `begun` directly. A folder that is not empty requires `is_forced`; files in it
    with other names are kept.
    """

    def __init__(self, path: Path, is_forced: bool) -> None:
        self.path = path
        self._is_forced = is_forced

    @contextlib.contextmanager
    def open(self) -> Iterator[Path]:
        """Yield the staging folder; without an exception its files become the result."""
        self.check()
        # In the nearest existing folder: the same file system, and no other folder is made before the end.
        stage = _beside(_existing(self.path) / self.path.name)
        try:
            stage.mkdir()
            yield stage
            obey()
            with undisturbed():
                self._take_in(stage)
        except CannotWriteError as error:  # about a file of the removed staging folder
            inside = error.path.parent == stage
            raise (
                CannotWriteError(self.path / error.path.name, error.reason) if inside else error
            ) from error
        except OSError as error:
            message = f"cannot write to '{self.path}': {error.strerror or error}"
            raise CannotRunError(message, "--out FOLDER") from error
        finally:
            with undisturbed():
                shutil.rmtree(stage, ignore_errors=True)

    def _take_in(self, stage: Path) -> None:
        """Move the result in, or to a free name next to it if another run was faster."""
        self.path.mkdir(parents=True, exist_ok=True)
        is_taken = not self._is_forced and any(_content(self.path))
        target = _claim_first(self.path) if is_taken else self.path
        for file in sorted(stage.iterdir()):
            file.replace(target / file.name)
        if is_taken:
            message = f"another run wrote to '{self.path}' in the meantime; this result is in '{target}'"
            raise CannotRunError(message, f"ls {shlex.quote(str(target))}")

    def begun(self) -> Path:
        """Make and claim the folder, for files that must survive an interrupted run."""
        missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        make_folder(self.path)
        _claimed.extend(reversed(missing))
        self._is_forced = True
        return self.path

    def check(self) -> None:
        """Refuse a folder that cannot be written to, before any long work."""
        if self.path.exists() and not self.path.is_dir():
            message = f"'--out {self.path}' is a file, not a folder"
            raise CannotRunError(message, f"--out {shlex.quote(f'{self.path}-pictures')}")
        if self.path.is_dir() and not self._is_forced and any(_content(self.path)):
            message = f"folder '{self.path}' is not empty"
            raise UsageError(message, f"--out {shlex.quote(str(self.path))} --force")
        existing = _existing(self.path)
        if not existing.is_dir() or not os.access(existing, os.W_OK):
            what = "not writable" if existing.is_dir() else "a file"
            raise CannotRunError(f"cannot write to '{self.path}': '{existing}' is {what}", "--out FOLDER")


def _content(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not is_unfinished(path))


def _existing(path: Path) -> Path:
    """Return the path itself or its nearest existing parent."""
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def free_folder(command: str, model: str) -> Path:
    """Make the first of `runs/<command>-<model>`, `-2`, `-3` ... that does not exist, and return it.

    Making it claims it against concurrent processes; `release_claims` removes it if the run writes nothing.
    """
    name = "".join(mark if mark.isalnum() or mark in "._-" else "-" for mark in Path(model).name)[:150]
    base = Path("runs") / f"{command}-{name}"
    try:
        with undisturbed():
            return _claim_first(base)
    except OSError as error:
        message = f"cannot write to '{base}': {error.strerror}"
        raise CannotRunError(message, "--out FOLDER") from error


def _claim_first(base: Path) -> Path:
    names = itertools.chain([base], (base.with_name(f"{base.name}-{n}") for n in itertools.count(2)))
    path = next(names)
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            path = next(names)
        except FileNotFoundError:  # there is no `runs` yet, or it was just removed
            base.parent.mkdir(exist_ok=True)
            _claimed.append(base.parent)
        else:
            _claimed.append(path)
            return path


def release_claims() -> None:
    """Remove the claimed folders that are still empty, at the end of a command."""
    with undisturbed():
        while _claimed:
            with contextlib.suppress(OSError):
                _claimed.pop().rmdir()
