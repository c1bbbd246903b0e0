"""Images in shards: tar archives of many files, as WebDataset has them, read in place and never unpacked."""

import os
import shlex
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.listing import Member, PictureFile
from modelscope_cli.records.naming import counted

SHARD_SUFFIX = ".tar"
_PACKED = (
    *(".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst", ".tzst"),
    *(".tar.lz4", ".tar.br"),
)
_UNPACK = {b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ\0": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"}


def is_shard(name: str) -> bool:
    """Whether a file has the name of a shard."""
    return name.lower().endswith(SHARD_SUFFIX)


def is_packed(name: str) -> bool:
    """Whether a file has the name of a compressed shard."""
    return name.lower().endswith(_PACKED)


def refuse_packed(path: str) -> None:
    """Refuse a compressed shard: to reach one image all before it would have to be unpacked.

    Raises:
        CannotRunError: exit code 4.
    """
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
    """Lists the images of shards, and remembers what there was beside them.

    Attributes:
        skipped: how many other members there were, of each kind.
        cut: of each shard that ends in the middle, how many images it has.
    """

    def __init__(self, suffixes: frozenset[str]) -> None:
        self._suffixes = suffixes
        self.skipped: Counter[str] = Counter()
        self.cut: dict[str, int] = {}
        self.n_shards = 0

    def read(self, path: str) -> Iterator[PictureFile]:
        """List the images of one shard in their order; only the headers are read.

        Raises:
            CannotRunError: it is compressed, or not a tar archive (exit 4).
        """
        refuse_packed(path)
        self.n_shards += 1
        n_images = 0
        try:
            with tarfile.open(path, "r:") as archive:
                while (info := archive.next()) is not None:
                    archive.members = []  # type: ignore[attr-defined]  # it would keep them all
                    if self._is_image(info):
                        n_images += 1
                        yield PictureFile(
                            f"{path}/{info.name.removeprefix('./')}",
                            member=Member(path, info.offset_data, info.size),
                        )
                if _is_cut(path, archive.offset):
                    self.cut[path] = n_images
        except tarfile.ReadError as error:
            if not n_images and "unexpected end" not in str(error):
                is_empty = os.path.getsize(path) == 0
                what = "is empty" if is_empty else "is not a tar archive, despite its name"
                raise CannotRunError(f"'{path}' {what}", f"file {shlex.quote(path)}") from error
            self.cut[path] = n_images

    def _is_image(self, info: tarfile.TarInfo) -> bool:
        is_named_so = Path(info.name).suffix.lower() in self._suffixes
        if info.isreg() and not info.issparse() and is_named_so:
            return True
        if not info.isdir():
            # A link leads to another member or out of the archive; devices, which have no end, are rare enough to
            # be counted with them.
            self.skipped["other file" if info.isreg() and not is_named_so else "link"] += 1
        return False

    def notes(self, word: str, n_images: int) -> list[str]:
        """Say what was found in the shards that a word names."""
        skipped = [counted(n, kind) for kind, n in sorted(self.skipped.items(), reverse=True)]
        rest = f", {' and '.join(skipped)} skipped" if skipped else ""
        return [f"'{word}': {counted(n_images, 'image')} in {counted(self.n_shards, 'shard')}{rest}"]


def _is_cut(path: str, end: int) -> bool:
    """Tell whether something else than the end of an archive stands where its last header was read."""
    with open(path, "rb") as file:
        file.seek(end)
        return any(file.read(tarfile.BLOCKSIZE))


def find_member(word: str, suffixes: frozenset[str]) -> PictureFile | None:
    """Return the image of a shard that is called as in a result, `shard.tar/cat/1.jpg`; None if there is none."""
    at = word.lower().find(SHARD_SUFFIX + "/")
    path = word[: at + len(SHARD_SUFFIX)]
    if at < 0 or not os.path.isfile(path):
        return None
    return next((file for file in ShardReader(suffixes).read(path) if file.name == word), None)
