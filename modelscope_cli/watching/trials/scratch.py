"""Copies of the files that a script sees, so that a trial writes into a copy and finds nothing of another trial."""

import errno
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

_LARGE = 4 << 20  # bytes: a larger file is linked
_MOST_BYTES, _MOST_FILES = 200 << 20, 20_000  # copied; what is beyond is linked
_CACHES = "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".ipynb_checkpoints"
_LEFT_OUT, _LINKED = {".git", ".hg", ".svn", "node_modules", *_CACHES}, {".venv", "site-packages"}
_TEMPORARY = Path(os.path.realpath("/tmp"))
# Where a path begins: after a separator, the slashes of an address or the letter of an option. And where one ends.
_BEGIN = re.compile(r"(?:^|[\s'\"`=:,;|()\[\]{}<>])(?:/*|-\w+|@)$")
_END = r"(?![\w+@~%#-]|\.[\w.])"


@dataclass(frozen=True, slots=True)
class Laid:
    """The files of one trial: where the script and its working directory are in the copy."""

    script: Path
    cwd: Path
    _places: tuple[tuple[str, str], ...]  # originals and copies of folders; the first of equal ones counts

    def moved(self, text: str) -> str:
        """Return an argument in which a path in the original folders is one in the copy."""
        return _replaced(text, self._places)

    def original(self, text: str) -> str:
        """Return a message in which a path in the copy is that of the original."""
        return _replaced(text, [(copy, original) for original, copy in self._places])


@dataclass(slots=True)
class FileSnapshot:
    """The files that a script saw before it ran: the folders of the script and of its working directory.

    Files of up to 4 MB are copied; larger ones, and what exceeds 200 MB or 20,000 files, are symbolic links, which
    can be read, and through which the kernel does not let a trial write. The copies lie in the same folders as the
    originals, from the root on, beside links to what else is there, so that `../data` is found. A home folder, or a
    large working directory that is not the script's own folder, is a folder of links as well.
    """

    script: Path
    cwd: Path
    _into: Path
    _typed: tuple[Path, ...]  # both folders as they were named, perhaps through symbolic links
    _barred: set[Path]
    _before: float | None
    _n_files: int = 0
    _n_bytes: int = 0

    @classmethod
    def take(
        cls, script: Path, cwd: Path, into: Path, *, before: float | None = None, without: Sequence[Path] = ()
    ) -> Self:
        """Copy the files; an OSError is raised where there is no room for them.

        Args:
            into: an empty place for the copies.
            before: leave out files that were changed at this time or later: those of the run, which has ended.
            without: files and folders to leave out.
        """
        typed, into = (script.parent.absolute(), cwd.absolute()), into.resolve()
        barred = {into, *(path.resolve() for path in without)}
        self = cls(script.parent.resolve() / script.name, cwd.resolve(), into, typed, barred, before)
        self._copy()
        return self

    def lay(self, place: Path) -> Laid:
        """Make the copy of one trial in an empty place."""
        place = place.resolve()
        shutil.copytree(self._into, place, symlinks=True, dirs_exist_ok=True)
        folders = self.script.parent, self.cwd, *self._typed
        places = [(str(one), str(_below(place, one.resolve()))) for one in folders if one != Path("/")]
        return Laid(_below(place, self.script), _below(place, self.cwd), tuple(places))

    def _copy(self) -> None:
        goals = self.script.parent, self.cwd
        wholes = {one for one in goals if _is_project(one) and (one == goals[0] or self._is_small(one))}
        for goal in goals:
            _below(self._into, goal).mkdir(parents=True, exist_ok=True)
        waiting = deque([(Path("/"), False)])
        while waiting:
            folder, is_whole = waiting.popleft()
            is_whole = folder in wholes or (is_whole and not self._is_apart(folder))
            ways = {folder / one.relative_to(folder).parts[0] for one in goals if folder in one.parents}
            most = None if ways or folder in goals else _MOST_FILES - self._n_files
            entries = [] if folder == _TEMPORARY and folder not in goals else _entries(folder, most)
            if most is not None and len(entries) > most:
                _below(self._into, folder).rmdir()
                _below(self._into, folder).symlink_to(folder)
                continue
            inner = [path for path in entries if path not in ways and self._bring(path, is_whole)]
            waiting.extend((path, is_whole) for path in (*ways, *inner))

    def _bring(self, path: Path, is_whole: bool) -> bool:
        """Copy or link what is in a folder; return True if it is a folder to go through."""
        own = _below(self._into, path)
        try:
            status = path.lstat()
            is_folder, is_file = stat.S_ISDIR(status.st_mode), stat.S_ISREG(status.st_mode)
            is_new = self._before is not None and status.st_mtime >= self._before and not is_folder
            if (is_new and path != self.script) or path in self._barred or path.name in _LEFT_OUT:
                return False
            if is_folder and is_whole and not self._is_apart(path):
                own.mkdir()
                own.chmod(status.st_mode & 0o777 | stat.S_IRWXU)  # so that it can be deleted
                return True
            n_files, n_bytes = self._n_files + 1, self._n_bytes + status.st_size
            has_room = status.st_size <= _LARGE and n_files <= _MOST_FILES and n_bytes <= _MOST_BYTES
            if is_file and ((is_whole and has_room) or path == self.script):
                shutil.copy2(path, own)
                self._n_files, self._n_bytes = n_files, n_bytes
            elif path.is_symlink() or is_file or is_folder:
                own.symlink_to(path if is_file or is_folder else self._target(path))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            own.unlink(missing_ok=True)  # unreadable, or gone by now
        return False

    def _is_apart(self, folder: Path) -> bool:
        """Tell whether a folder holds installed packages, or nothing that is copied."""
        is_known = folder.name in _LEFT_OUT | _LINKED or folder in self._barred
        return is_known or os.path.exists(folder / "pyvenv.cfg")

    def _is_small(self, folder: Path) -> bool:
        n_left = _MOST_FILES
        for parent, folders, files in os.walk(folder):
            folders[:] = [name for name in folders if not self._is_apart(Path(parent, name))]
            n_left -= len(folders) + len(files)
            if n_left < 0:
                return False
        return True

    def _target(self, link: Path) -> str:
        """Return what a link points at; a relative one that leads out of the folders becomes absolute."""
        target = os.readlink(link)
        path = Path(os.path.normpath(link.parent / target))
        is_kept = any(path.is_relative_to(folder) for folder in (self.script.parent, self.cwd))
        return target if os.path.isabs(target) or is_kept else str(path)


def _entries(folder: Path, most: int | None) -> list[Path]:
    """Return what is in a folder, and at most one more than `most`; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in islice(entries, None if most is None else most + 1)]
    except OSError:
        return []


def _below(place: Path, path: Path) -> Path:
    return place / path.relative_to("/")


def _is_project(folder: Path) -> bool:
    """Tell whether a folder can be copied: not the root, the home folder, `/tmp` or one of packages."""
    is_shared = folder in (Path("/"), Path(os.path.expanduser("~")).resolve(), _TEMPORARY)
    return not is_shared and not _LINKED.intersection(folder.parts)


def _replaced(text: str, places: Sequence[tuple[str, str]]) -> str:
    """Replace folders at the beginning of paths in a text."""
    known = dict(reversed(places))
    longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))

    def put(found: re.Match[str]) -> str:
        return known[found[0]] if _BEGIN.search(text, 0, found.start()) else found[0]

    return re.sub(f"(?:{longest_first}){_END}", put, text) if known else text
