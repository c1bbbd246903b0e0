"""Copies of the files that a script sees, so that a trial writes into a copy and finds nothing of another trial."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

_LARGE = 4 << 20  # bytes: a larger file is linked
_MOST_BYTES, _MOST_FILES = 200 << 20, 20_000  # copied; what is beyond is linked
_LEFT_OUT = {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
_LINKED = {"node_modules", "site-packages"}


@dataclass(frozen=True, slots=True)
class Laid:
    """The files of one trial.

    Attributes:
        script, cwd: the script and its working directory in the copy.
    """

    script: Path
    cwd: Path
    _places: tuple[tuple[str, str], ...]  # originals and copies of the trees

    def moved(self, text: str) -> str:
        """Return an argument in which a path in the original trees is one in the copy."""
        return _replaced(text, self._places)

    def original(self, text: str) -> str:
        """Return a message in which a path in the copy is that of the original."""
        return _replaced(text, [(copy, original) for original, copy in self._places])


@dataclass(slots=True)
class Snapshot:
    """The files that a script saw before it ran: the folders of the script and of its working directory.

    Files of up to 4 MB are copied; larger ones, and what exceeds 200 MB or 20,000 files, are symbolic links, which
    can be read, and through which the kernel does not let a trial write.
    """

    script: Path
    cwd: Path
    trees: list[tuple[Path, Path]] = field(default_factory=list)  # originals and copies
    _n_files: int = 0
    _n_bytes: int = 0

    @classmethod
    def take(
        cls, script: Path, cwd: Path, into: Path, *, before: float | None = None, without: Sequence[Path] = ()
    ) -> Self:
        """Copy the files.

        Args:
            into: an empty place for the copies.
            before: leave out files that were changed at this time or later: those of the run, which has ended.
            without: files and folders to leave out.
        """
        self = cls(script.resolve(), cwd.resolve())
        roots = [self.script.parent]
        if not _is_inside(self.cwd, roots[0]):
            roots = (
                [one for one in roots if not _is_inside(one, self.cwd)] if _is_project(self.cwd) else roots
            )
            roots.append(self.cwd)
        barred = {path.resolve() for path in without}

        def is_wanted(path: Path) -> bool:
            if path.name in _LEFT_OUT or path in barred:
                return False
            return before is None or path.is_dir() or path.lstat().st_mtime < before

        for number, root in enumerate(roots):
            copy = into / str(number)
            self._copy(root, copy, is_wanted, is_whole=_is_project(root))
            self.trees.append((root, copy))
        return self

    def lay(self, place: Path) -> Laid:
        """Make the copy of one trial in an empty place."""
        pairs = []
        for number, (root, copy) in enumerate(self.trees):
            own = place / str(number)
            shutil.copytree(copy, own, symlinks=True)
            pairs.append((str(root), str(own)))
        pairs.sort(key=lambda pair: -len(pair[0]))  # the innermost first
        places = tuple(pairs)
        return Laid(Path(_replaced(str(self.script), places)), Path(_replaced(str(self.cwd), places)), places)

    def _copy(
        self, source: Path, target: Path, is_wanted: Callable[[Path], bool], *, is_whole: bool = True
    ) -> None:
        """Copy a folder; one that is not whole becomes a folder of links."""
        target.mkdir(parents=True)
        for entry in _entries(source):
            path, own = Path(entry.path), target / entry.name
            try:
                self._copy_entry(entry, path, own, is_wanted, is_whole=is_whole)
            except OSError:
                continue  # unreadable, or gone by now
        shutil.copymode(source, target)
        target.chmod(target.stat().st_mode | stat.S_IRWXU)  # so that it can be deleted

    def _copy_entry(
        self,
        entry: os.DirEntry[str],
        path: Path,
        own: Path,
        is_wanted: Callable[[Path], bool],
        *,
        is_whole: bool,
    ) -> None:
        if not is_wanted(path):
            return
        if entry.is_symlink():
            own.symlink_to(self._target(path))
        elif entry.is_dir():
            is_linked = entry.name in _LINKED or (path / "pyvenv.cfg").exists() or not is_whole
            if is_linked or self._n_files >= _MOST_FILES:
                own.symlink_to(path)
            else:
                self._copy(path, own, is_wanted)
        elif entry.is_file():
            size = entry.stat().st_size
            is_full = self._n_files >= _MOST_FILES or self._n_bytes + size > _MOST_BYTES
            if not is_whole or size > _LARGE or is_full:
                own.symlink_to(path)
            else:
                shutil.copy2(path, own)
                self._n_files, self._n_bytes = self._n_files + 1, self._n_bytes + size

    def _target(self, link: Path) -> str:
        """Return what a link points at; a relative one that leads out of the copy becomes absolute."""
        target = os.readlink(link)
        path = Path(os.path.normpath(link.parent / target))
        is_kept = os.path.isabs(target) or _is_inside(path, self.script.parent) or _is_inside(path, self.cwd)
        return target if is_kept else str(path)


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from list(entries)
    except OSError:
        return


def _is_inside(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _is_project(folder: Path) -> bool:
    """Tell whether a folder can be copied: not the home folder, the root or that of temporary files."""
    return folder not in (Path.home(), Path("/"), Path(tempfile.gettempdir()).resolve())


def _replaced(text: str, places: Sequence[tuple[str, str]]) -> str:
    """Replace folders at the beginning of paths in a text, each place once."""
    found, at = [], 0
    while at < len(text):
        for old, new in places:
            end = at + len(old)
            if text.startswith(old, at) and text[end : end + 1] in ("", os.sep, "'", '"', ":", " ", ","):
                found.append(new)
                at = end
                break
        else:
            found.append(text[at])
            at += 1
    return "".join(found)
