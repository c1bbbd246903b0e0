"""Find image files: in folders, globs and lists."""

import glob
import hashlib
import os
import shlex
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import filterfalse, islice
from pathlib import Path
from typing import overload

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.library_types import Image
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.records.naming import counted

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# Images of other kinds, which are not read
_OF_CAMERAS = (".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw")
OTHER_SUFFIXES = (*_OF_CAMERAS, ".avif", ".heic", ".heif", ".jp2", ".jxl", ".psd", ".svg")
# Listed, because Pillow also opens formats that start another program (EPS).
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MOST_WALKED = 1000  # folders, for a hint


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image to be decoded."""

    name: str  # its path
    content: bytes | None = None  # the bytes of standard input, which can be read only once
    # An image decoded by the Python caller
    image: Image | None = field(default=None, compare=False, repr=False)

    def count_bytes(self) -> int:
        """Return its size; 0 for a decoded image or a missing file."""
        if self.content is not None or self.image is not None:
            return len(self.content or b"")
        try:
            return os.stat(self.name).st_size
        except (OSError, ValueError):
            return 0


class FileList(Sequence[ListedImage]):
    """Image files by number, created on demand from their names.

    Names and their end positions are in two buffers, which forked processes share: the pages of a list of Python
    strings would be copied as reference counts change.
    """

    def __init__(self, files: Iterable[ListedImage], roots: Sequence[str] = ()) -> None:
        names, ends = bytearray(), array("q")
        self.roots = roots
        self._given: dict[int, ListedImage] = {}  # inputs other than files that can be reopened
        for n, file in enumerate(files):
            if file.content is not None or file.image is not None:
                self._given[n] = file
            names += os.fsencode(file.name)
            ends.append(len(names))
        self._names, self._ends, self._n = names, ends, len(ends)
        self._sha256: str | None = None

    def __len__(self) -> int:
        return self._n

    @overload
    def __getitem__(self, at: int) -> ListedImage: ...
    @overload
    def __getitem__(self, at: slice) -> list[ListedImage]: ...
    def __getitem__(self, at: int | slice) -> ListedImage | list[ListedImage]:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(self._n))]
        n = at + self._n if at < 0 else at
        if not 0 <= n < self._n:
            raise IndexError(at)
        if n in self._given:
            return self._given[n]
        return ListedImage(os.fsdecode(self._name(n)))

    @property
    def has_given(self) -> bool:
        """Whether some are not files: standard input or decoded images."""
        return bool(self._given)

    def class_of(self, name: str) -> str:
        """Return the name of an image's folder; below `roots` of the uppermost, as torchvision's `ImageFolder`."""
        folder = os.path.dirname(os.path.abspath(name))
        root = next(filter(folder.startswith, self.roots), "")
        return folder[len(root) :].partition(os.sep)[0] if root else os.path.basename(folder)

    def sha256(self) -> str:
        """Return a hash of the names and sizes of all files in order; computed once."""
        if self._sha256 is None:
            digest = hashlib.sha256()
            for n, file in enumerate(self):
                digest.update(b"%s\0%d\n" % (self._name(n), file.count_bytes()))
            self._sha256 = digest.hexdigest()
        return self._sha256

    def _name(self, n: int) -> bytes:
        return bytes(self._names[self._ends[n - 1] if n else 0 : self._ends[n]])


@dataclass(slots=True)
class FoundImages:
    """The images that words name, in the order typed; sorted by name bytes inside a folder or glob."""

    files: FileList = field(default_factory=lambda: FileList(()))
    notes: list[str] = field(default_factory=list)  # skipped files and searched subfolders
    others: list[str] = field(default_factory=list)  # skipped images of kinds that are not read
    roots: list[str] = field(default_factory=list)  # folders of classes with folders in them, ending in /


def find_images(typed: Iterable[str]) -> FoundImages:
    """Return the images that words name.

    The subfolders of a folder, with all inside them, are searched only if it has no images of its own, and one of
    them has. A glob may contain `**`. `@FILE` is a list with one path per line, relative to the working folder.
    """
    found = FoundImages()
    found.files = FileList((file for word in typed for file in _find(word, found)), found.roots)
    return found


def check_pictures(typed: Iterable[str]) -> None:
    """Raise the errors of `find_images` for invalid words, without listing all images."""
    for word in typed:
        next(_find(word, FoundImages()), None)


def _find(word: str, messages: FoundImages) -> Iterator[ListedImage]:
    if word == "-":
        if not (content := sys.stdin.buffer.read()):
            raise CannotRunError("'-' is empty: nothing came in on standard input", "modelscope ... < IMAGE")
        yield ListedImage("-", content)
        return
    with _opened(word):
        # Unlike Path's, these return False for an empty or overlong name.
        if os.path.isdir(word):
            yield from _in_folder(word, messages)
        elif os.path.exists(word):
            yield _of_file(word)
        elif word.startswith("@"):
            yield from _listed(word[1:])
        else:
            yield from _matching(word, messages)


def is_archive(name: str) -> bool:
    """Tell whether a file is named like an archive, of which no images are read."""
    return name.lower().endswith(_ARCHIVES)


def _of_file(path: str) -> ListedImage:
    refuse_endless(path)
    if is_archive(path):
        message = f"'{path}' is an archive, but images are read from files"
        raise CannotRunError(message, f"tar -xf {shlex.quote(path)}")
    return ListedImage(path)


def _matching(word: str, messages: FoundImages) -> Iterator[ListedImage]:
    if word.startswith(("http://", "https://")):
        message = f"'{word}' is a URL, but images are read from files"
        raise CannotRunError(message, f"curl -LO {shlex.quote(word)}")
    if not glob.has_magic(word):
        raise CannotRunError(f"'{word}' does not exist", look_for(word))
    matches = glob.glob(word, recursive=True)
    if not matches:
        raise UsageError(f"'{word}' matches no file", look_for(word))
    yield from _sorted_out(word, filterfalse(os.path.isdir, matches), look_for(word), messages)


def _in_folder(word: str, messages: FoundImages) -> Iterator[ListedImage]:
    """Yield the images of a folder, or of its subfolders if it has no images."""
    folder = str(Path(word))
    files, folders = _inside(folder)
    if not os.listdir(folder):
        raise CannotRunError(f"the folder '{word}' is empty", f"ls -a {shlex.quote(folder)}")
    if any(is_picture(x) for one in folders for *_, names in islice(os.walk(one), 1) for x in names):
        note = "the images in its subfolders are left out, as it has images of its own"
        if not any(map(is_picture, files)):
            files = [*_below(folders, frozenset({os.path.realpath(folder)}))]
            places, direct = [os.path.dirname(path) for path in filter(is_picture, files)], {*folders}
            note = f"{counted(len(places), 'image')} in {counted(len(folders), 'subfolder')}"
            if n_deeper := sum(place not in direct for place in places):
                note += f", {n_deeper:,} of them in folders inside"
                messages.roots.append(os.path.join(os.path.abspath(folder), ""))
        messages.notes.append(f"{word}: {note}")
    hint = "" if any(map(is_picture, files)) else _hint_inside(folder)
    yield from _sorted_out(word, files, hint, messages)


def _below(folders: Iterable[str], above: frozenset[str]) -> Iterator[str]:
    """Yield the files in folders and in all inside them; a link to a folder that it is in is not followed."""
    for folder in folders:
        if (real := os.path.realpath(folder)) not in above:
            files, inner = _inside(folder)
            yield from files
            yield from _below(inner, above | {real})


def _hint_inside(folder: str) -> str:
    """Return a hint with a glob for deeper images in a folder, else one that lists its content."""
    for below, _, names in islice(os.walk(folder), _MOST_WALKED):
        if any(is_picture(name) and os.path.isfile(os.path.join(below, name)) for name in names):
            return f"{shlex.quote(os.path.join(folder, '**', '*'))}   includes images in subfolders"
    return f"ls {shlex.quote(folder)}"


def _inside(folder: str) -> tuple[list[str], list[str]]:
    """Return the paths of the files and of the non-hidden subfolders in a folder."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = entry.name if folder == "." else os.path.join(folder, entry.name)
            if entry.is_file() or (is_picture(path) and not os.path.exists(path)):  # or a broken link
                files.append(path)
            elif entry.is_dir() and not entry.name.startswith((".", "__MACOSX")):  # of an unpacked archive
                folders.append(path)
    return files, folders


def _sorted_out(word: str, paths: Iterable[str], hint: str, messages: FoundImages) -> Iterator[ListedImage]:
    """Yield the images among files."""
    files = sorted(paths, key=os.fsencode)  # the same in every locale
    images = [path for path in files if is_picture(path)]
    if not images:
        raise CannotRunError(f"'{word}' contains no image ({', '.join(sorted(IMAGE_SUFFIXES))})", hint)
    if len(images) < len(files):
        skipped = counted(len(files) - len(images), "other file")
        messages.notes.append(f"'{word}': {counted(len(images), 'image')}, {skipped} skipped")
        messages.others += [path for path in files if path.lower().endswith(OTHER_SUFFIXES)]
    yield from map(ListedImage, images)


def _listed(path: str) -> Iterator[ListedImage]:
    """Yield the files of a list in order."""
    if not os.path.isfile(path):
        raise CannotRunError(f"list of images '{path}' does not exist", look_for(path))
    refuse_endless(path, "list of images ")
    n_files = 0
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            name = os.fsdecode(line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").rstrip(b"\r\n"))
            if not name.strip():
                continue
            n_files += 1
            # The only check per line, as lists may have millions.
            is_file = os.path.isfile(name) and not is_archive(name)
            yield ListedImage(name) if is_file else _of_line(name, f"line {number} of '{path}'")
    if not n_files:
        raise CannotRunError(f"list of images '{path}' is empty", "one path per line")


def _of_line(name: str, where: str) -> ListedImage:
    if os.path.isdir(name):
        message = f"{where}: '{name}' is a folder, but a list must contain files"
        raise CannotRunError(message, f"find {shlex.quote(name)} -name '*.jpg'   prints the lines")
    if not os.path.exists(name):
        near, paths = look_for(name), "its paths are relative to the working folder"
        hint = paths if near.startswith("ls ") else f"in the list, {near}"
        raise CannotRunError(f"{where}: '{name}' does not exist", hint)
    return _of_file(name)


def is_picture(path: str) -> bool:
    """Tell whether a file is named like an image."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


@contextmanager
def _opened(word: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # an unreadable folder or list
        folder = shlex.quote(str(Path(word).parent))
        raise CannotRunError(f"'{word}' cannot be opened: {error.strerror}", f"ls -ld {folder}") from error
