"""Find image files: in folders, globs, lists and shards (tar archives, read in place and never unpacked)."""

import glob
import os
import shlex
import sys
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError, quoted
from modelscope_cli.inputs.listing import FileList, ListedImage, Member, by_bytes
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.records.naming import counted
from modelscope_cli.records.run import Notice

SHARD_SUFFIX = ".tar"
_PACKED = (
    *(".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst"),
    *(".tar.lz4", ".tar.br"),
)
_UNPACK = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


def is_shard(name: str) -> bool:
    return name.lower().endswith(SHARD_SUFFIX)


def is_packed(name: str) -> bool:
    """Tell whether a file is named like a compressed shard."""
    return name.lower().endswith(_PACKED)


def refuse_packed(path: str) -> None:
    """Refuse a compressed shard, which has no random access to its images."""
    with open(path, "rb") as file:
        first = file.read(8)
    tool = next((tool for magic, tool in _UNPACK.items() if first.startswith(magic)), None)
    if tool is None and not is_packed(path):
        return
    message = f"'{path}' is a compressed archive, in which images cannot be read by position"
    raise CannotRunError(
        message, f"{tool or 'tar --help'} {shlex.quote(path)}" if tool else "use a plain .tar"
    )


class ShardReader:
    """Lists the images of shards and counts their other members."""

    def __init__(self, suffixes: frozenset[str]) -> None:
        self._suffixes = suffixes
        self.skipped: Counter[str] = Counter()  # number of other members by kind
        self.cut: dict[str, int] = {}  # number of images in each truncated shard
        self.n_shards = 0

    def read(self, path: str) -> Iterator[ListedImage]:
        """List the images of one shard in order, reading only the headers."""
        refuse_packed(path)
        self.n_shards += 1
        n_images = 0
        try:
            with tarfile.open(path, "r:") as archive:
                while (info := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                    if self._is_image(info):
                        n_images += 1
                        yield ListedImage(
                            f"{path}/{info.name.removeprefix('./')}",
                            member=Member(path, info.offset_data, info.size),
                        )
                if _is_cut(path, archive.offset):
                    self.cut[path] = n_images
        except tarfile.ReadError as error:
            if not n_images and "unexpected end" not in str(error):
                is_empty = os.path.getsize(path) == 0
                problem = "is empty" if is_empty else "is not a tar archive, despite its name"
                raise CannotRunError(f"'{path}' {problem}", f"file {shlex.quote(path)}") from error
            self.cut[path] = n_images

    def _is_image(self, info: tarfile.TarInfo) -> bool:
        is_named_so = Path(info.name).suffix.lower() in self._suffixes
        if info.isreg() and not info.issparse() and is_named_so:
            return True
        if not info.isdir():
            # Links lead to other members or out of the archive; the rare devices are counted as links.
            self.skipped["other file" if info.isreg() and not is_named_so else "link"] += 1
        return False

    def notes(self, word: str, n_images: int) -> list[str]:
        """Return notes on the content of the shards that a word names."""
        skipped = [counted(n, kind) for kind, n in sorted(self.skipped.items(), reverse=True)]
        rest = f", {' and '.join(skipped)} skipped" if skipped else ""
        return [f"'{word}': {counted(n_images, 'image')} in {counted(self.n_shards, 'shard')}{rest}"]


def _is_cut(path: str, end: int) -> bool:
    """Tell whether a shard lacks the end-of-archive marker after its last header."""
    with open(path, "rb") as file:
        file.seek(end)
        return any(file.read(tarfile.BLOCKSIZE))


def find_member(word: str, suffixes: frozenset[str]) -> ListedImage | None:
    """Return the image in a shard by its name in results, `shard.tar/cat/1.jpg`; None if missing."""
    at = word.lower().find(SHARD_SUFFIX + "/")
    path = word[: at + len(SHARD_SUFFIX)]
    if at < 0 or not os.path.isfile(path):
        return None
    return next((file for file in ShardReader(suffixes).read(path) if file.name == word), None)


IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
# Listed, because Pillow also opens formats that start another program (EPS).
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
_MOST_WALKED = 1000  # folders, for a hint


@dataclass(slots=True)
class FoundImages:
    """The images that words name, in the order typed; sorted by name bytes inside a folder or glob."""

    files: FileList = field(default_factory=lambda: FileList(()))
    notes: list[str] = field(default_factory=list)  # skipped files and searched subfolders
    warnings: list[Notice] = field(default_factory=list)  # about truncated shards


def find_images(typed: Iterable[str]) -> FoundImages:
    """Return the images that words name.

    Shards in a folder and its subfolders (one level) are searched only if it has no images of its own. A glob may
    contain `**`. `@FILE` is a list with one path per line, relative to the working folder.
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
            yield from _of_file(word, messages)
        elif word.startswith("@"):
            yield from _listed(word[1:], messages)
        elif (member := find_member(word, IMAGE_SUFFIXES)) is not None:
            yield member
        else:
            yield from _matching(word, messages)


def _of_file(path: str, messages: FoundImages) -> Iterator[ListedImage]:
    refuse_endless(path)
    if _is_shard(path):
        yield from _in_shards(path, [path], messages)
    else:
        yield ListedImage(path)


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
    """Yield the images of a folder, or of its subfolders if it has neither images nor shards."""
    folder = str(Path(word))
    files, folders = _inside(folder)
    if not any(map(_is_usable, files)):
        below = [path for subfolder in folders for path in _inside(subfolder)[0]]
        if any(map(_is_usable, below)):
            messages.notes.append(f"'{word}': the images in its {counted(len(folders), 'folder')}")
            files = below
    hint = "" if any(map(_is_usable, files)) else _hint_inside(folder)
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
    """Yield the images among files; without any, those in shards among them."""
    files = sorted(paths, key=by_bytes)
    images = [path for path in files if _is_picture(path)]
    if images:
        if len(images) < len(files):
            messages.notes.append(
                f"'{word}': {len(images)} images, {len(files) - len(images)} other files skipped"
            )
        yield from map(ListedImage, images)
        return
    shards = [path for path in files if _is_shard(path)]
    if not shards:
        kinds = ", ".join(sorted({*IMAGE_SUFFIXES, SHARD_SUFFIX}))
        raise CannotRunError(f"'{word}' holds no image ({kinds})", hint)
    yield from _in_shards(word, shards, messages)


def _in_shards(word: str, shards: list[str], messages: FoundImages) -> Iterator[ListedImage]:
    for path in shards:
        refuse_packed(path)  # before reading any: skipping some shards would skip data
    reader, n_images = ShardReader(IMAGE_SUFFIXES), 0
    for path in shards:
        for file in reader.read(path):
            n_images += 1
            yield file
    if not n_images:
        raise CannotRunError(f"'{word}' holds no image", f"tar -tf {shlex.quote(shards[0])}")
    messages.notes.extend(reader.notes(word, n_images))
    messages.warnings.extend(
        Notice(
            "cut-shard", f"'{path}' is truncated or damaged: only its first {counted(n, 'image')} can be read"
        )
        for path, n in reader.cut.items()
    )


def _listed(path: str, messages: FoundImages) -> Iterator[ListedImage]:
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
            if os.path.isfile(name) and not _is_shard(
                name
            ):  # the only check per line, as lists may have millions
                yield ListedImage(name)
            else:
                yield from _of_line(name, f"line {number} of '{path}'", messages)
    if not n_files:
        raise CannotRunError(f"list of images '{path}' is empty", "one path per line")


def _of_line(name: str, where: str, messages: FoundImages) -> Iterator[ListedImage]:
    if os.path.isdir(name):
        message = f"{where}: '{name}' is a folder, but a list must contain files"
        raise CannotRunError(message, f"find {shlex.quote(name)} -name '*.jpg'   prints the lines")
    if not os.path.exists(name):
        near = _nearest_name(Path(name))
        hint = f"in the list, {near}" if near else "its paths are relative to the working folder"
        raise CannotRunError(f"{where}: '{name}' does not exist", hint)
    yield from _of_file(name, messages)


def _is_picture(path: str) -> bool:
    """Tell whether a file is named like an image."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def _is_shard(path: str) -> bool:
    """Tell whether a file is named like a shard, compressed (refused later) or not."""
    return is_shard(path) or is_packed(path)


def _is_usable(path: str) -> bool:
    return _is_picture(path) or _is_shard(path)


@contextmanager
def _opened(word: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # an unreadable folder, list or shard
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
    beside = (other.name for other in path.parent.iterdir() if other.is_dir() or _is_usable(other.name))
    near = get_close_matches(path.name, beside, cutoff=0.5)
    return "did you mean " + quoted(str(path.with_name(name)) for name in near) if near else ""
