"""Find image files: in folders, globs and lists."""

import glob
import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError, quoted
from modelscope_cli.inputs.listing import FileList, ListedImage, by_bytes
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.records.naming import counted

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# Listed, because Pillow also opens formats that start another program (EPS).
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MOST_WALKED = 1000  # folders, for a hint


@dataclass(slots=True)
class FoundImages:
    """The images that words name, in the order typed; sorted by name bytes inside a folder or glob."""

    files: FileList = field(default_factory=lambda: FileList(()))
    notes: list[str] = field(default_factory=list)  # skipped files and searched subfolders


def find_images(typed: Iterable[str]) -> FoundImages:
    """Return the images that words name.

    The subfolders of a folder (one level) are searched only if it has no images of its own. A glob may contain
    `**`. `@FILE` is a list with one path per line, relative to the working folder.
    """
    found = FoundImages()
    found.files = FileList(file for word in typed for file in _find(word, found))
    return found


def check_pictures(typed: Iterable[str]) -> None:
    """Raise the errors of `find_images` for invalid words, without listing all images."""
    for word in typed:
        next(_find(word, FoundImages()), None)


def _find(word: str, messages: FoundImages) -> Iterator[ListedImage]:
    if word == "-":
        yield _standard_input()
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
        message = f"'{path}' is an archive, and images are read from files"
        raise CannotRunError(message, f"tar -xf {shlex.quote(path)}")
    return ListedImage(path)


def _matching(word: str, messages: FoundImages) -> Iterator[ListedImage]:
    if word.startswith(("http://", "https://")):
        message = f"'{word}' is a URL, but images are read from files"
        raise CannotRunError(message, f"curl -LO {shlex.quote(word)}")
    if not glob.has_magic(word):
        raise CannotRunError(f"'{word}' does not exist", _nearest_name(Path(word)) or look_for(word))
    matches = glob.glob(word, recursive=True)
    if not matches:
        raise UsageError(f"'{word}' matches no file", look_for(word))
    yield from _sorted_out(word, filter(os.path.isfile, matches), look_for(word), messages)


def _in_folder(word: str, messages: FoundImages) -> Iterator[ListedImage]:
    """Yield the images of a folder, or of its subfolders if it has no images."""
    folder = str(Path(word))
    files, folders = _inside(folder)
    if not any(map(_is_picture, files)):
        below = [path for subfolder in folders for path in _inside(subfolder)[0]]
        if any(map(_is_picture, below)):
            messages.notes.append(f"'{word}': the images in its {counted(len(folders), 'folder')}")
            files = below
    hint = "" if any(map(_is_picture, files)) else _hint_inside(folder)
    yield from _sorted_out(word, files, hint, messages)


def _hint_inside(folder: str) -> str:
    """Return a hint with a glob for deeper images in a folder, else one that lists its content."""
    for below, _, names in islice(os.walk(folder), _MOST_WALKED):
        if any(_is_picture(name) and os.path.isfile(os.path.join(below, name)) for name in names):
            return f"{shlex.quote(os.path.join(folder, '**', '*'))}   includes images in subfolders"
    return f"ls {shlex.quote(folder)}"


def _inside(folder: str) -> tuple[list[str], list[str]]:
    """Return the paths of the files and of the non-hidden subfolders in a folder."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = entry.name if folder == "." else os.path.join(folder, entry.name)
            if entry.is_file():
                files.append(path)
            elif entry.is_dir() and not entry.name.startswith("."):
                folders.append(path)
    return files, folders


def _sorted_out(word: str, paths: Iterable[str], hint: str, messages: FoundImages) -> Iterator[ListedImage]:
    """Yield the images among files."""
    files = sorted(paths, key=by_bytes)
    images = [path for path in files if _is_picture(path)]
    if not images:
        raise CannotRunError(f"'{word}' holds no image ({', '.join(sorted(IMAGE_SUFFIXES))})", hint)
    if len(images) < len(files):
        messages.notes.append(
            f"'{word}': {len(images)} images, {len(files) - len(images)} other files skipped"
        )
    yield from map(ListedImage, images)


def _listed(path: str) -> Iterator[ListedImage]:
    """Yield the files of a list in order."""
    if not os.path.isfile(path):
        hint = _nearest_name(Path(path)) or look_for(path)
        raise CannotRunError(f"list of images '{path}' does not exist", hint)
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
        near = _nearest_name(Path(name))
        hint = f"in the list, {near}" if near else "its paths are relative to the working folder"
        raise CannotRunError(f"{where}: '{name}' does not exist", hint)
    return _of_file(name)


def _is_picture(path: str) -> bool:
    """Tell whether a file is named like an image."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


@contextmanager
def _opened(word: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # an unreadable folder or list
        folder = shlex.quote(str(Path(word).parent))
        raise CannotRunError(f"'{word}' cannot be opened: {error.strerror}", f"ls -ld {folder}") from error


def _standard_input() -> ListedImage:
    content = sys.stdin.buffer.read()
    if not content:
        raise CannotRunError("'-' is empty: nothing came in on standard input", "modelscope ... < IMAGE")
    return ListedImage("-", content)


def _nearest_name(path: Path) -> str:
    """Return "did you mean" and the nearest image paths in the same folder; empty if none."""
    if not path.parent.is_dir():
        return ""
    beside = (other.name for other in path.parent.iterdir() if other.is_dir() or _is_picture(other.name))
    near = get_close_matches(path.name, beside, cutoff=0.5)
    return "did you mean " + quoted(str(path.with_name(name)) for name in near) if near else ""
