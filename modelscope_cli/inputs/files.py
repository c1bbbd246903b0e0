"""From what was typed to the pictures it names: files, folders, globs, standard input."""

import glob
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.errors import CannotRunError, UsageError, nearest
from modelscope_cli.paths import refuse_endless
from modelscope_cli.records.naming import counted

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


@dataclass(frozen=True, slots=True)
class PictureFile:
    """An image to be decoded.

    Attributes:
        content: the bytes of standard input, which can be read only once.
        image: one that a caller in Python had decoded already.
    """

    name: str
    content: bytes | None = None
    image: "Image | None" = field(default=None, compare=False, repr=False)


def find_pictures(typed: Iterable[str]) -> tuple[list[PictureFile], list[str]]:
    """Return the pictures in the order typed, sorted inside a folder or glob, and notes on what was skipped.

    A folder is not searched further down, but for one without pictures of its own: it may be a data set, a folder
    for each class. A glob may say `**`.

    Raises:
        UsageError: exit code 2; a glob matched nothing.
        CannotRunError: exit code 4; a file is missing, a folder holds no picture, standard input is empty.
    """
    pictures: list[PictureFile] = []
    notes: list[str] = []
    for word in typed:
        try:
            pictures += _find(word, notes)
        except OSError as error:  # a folder that may not be listed
            folder = shlex.quote(str(Path(word).parent))
            raise CannotRunError(
                f"'{word}' cannot be opened: {error.strerror}", f"ls -ld {folder}"
            ) from error
    return pictures, notes


def _find(word: str, notes: list[str]) -> list[PictureFile]:
    parent = shlex.quote(str(Path(word).parent))
    if word == "-":
        return [_standard_input()]
    # Unlike those of Path, these answer False for an empty name and for one that is too long.
    if os.path.isdir(word):
        return _only_pictures(word, _inside(Path(word), notes), f"ls {shlex.quote(word)}", notes)
    if os.path.exists(word):
        refuse_endless(word)
        return [PictureFile(word)]
    if not glob.has_magic(word):
        raise CannotRunError(f"'{word}' does not exist", _nearest_name(Path(word)) or f"ls {parent}")
    matches = glob.glob(word, recursive=True)
    if not matches:
        raise UsageError(f"'{word}' matches no file", f"ls {parent}")
    return _only_pictures(word, map(Path, matches), f"ls {parent}", notes)


def _inside(folder: Path, notes: list[str]) -> list[Path]:
    """Return what is in a folder, or in its folders where it holds no picture of its own."""
    inside = list(folder.iterdir())
    if any(_is_picture(path) and path.is_file() for path in inside):
        return inside
    below = [path for path in inside if path.is_dir() and not path.name.startswith(".")]
    found = [path for one in below for path in one.iterdir()]
    if found:
        notes.append(f"'{folder}': the images in its {counted(len(below), 'folder')}")
    return found or inside


def _is_picture(path: Path) -> bool:
    """Whether it has the name of a picture."""
    return path.suffix.lower() in PICTURE_SUFFIXES


def _only_pictures(word: str, paths: Iterable[Path], hint: str, notes: list[str]) -> list[PictureFile]:
    files = sorted(path for path in paths if path.is_file())
    pictures = [path for path in files if _is_picture(path)]
    if not pictures:
        raise CannotRunError(f"'{word}' holds no image ({', '.join(sorted(PICTURE_SUFFIXES))})", hint)
    if len(pictures) < len(files):
        notes.append(f"'{word}': {len(pictures)} images, {len(files) - len(pictures)} other files skipped")
    return [PictureFile(str(path)) for path in pictures]


def _standard_input() -> PictureFile:
    content = sys.stdin.buffer.read()
    if not content:
        raise CannotRunError(
            "'-' is empty: nothing came in on standard input", "modelscope stats - < photo.jpg"
        )
    return PictureFile("-", content)


def _nearest_name(path: Path) -> str:
    return nearest(path.name, (other.name for other in path.parent.iterdir())) if path.parent.is_dir() else ""
