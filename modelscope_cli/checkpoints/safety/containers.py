"""What stands inside archives and packed files, each as a file of its own. Standard library."""

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from modelscope_cli.checkpoints.safety.window import window
from modelscope_cli.checkpoints.zip_directory import ZipEntry, data_start, list_entries

MAX_UNPACKED = 64 << 20
_MAX_MEMBERS = 20_000
_N_HEAD = 16
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_CLOSED = {
    **{
        b"7z\xbc\xaf\x27\x1c": "a 7z archive",
        b"Rar!": "a RAR archive",
        b"\x28\xb5\x2f\xfd": "packed by zstd",
    },
    **{b"\x04\x22\x4d\x18": "packed by lz4", b"\x89HDF": "an HDF5 file, which may hold code of Keras"},
}
_OBJECTS = re.compile(rb"['\"|<>=]O\d?['\"]")


@dataclass(frozen=True, slots=True)
class Part:
    """A file inside another.

    Attributes:
        file: None where it cannot be had, and `problem` says why.
        problem: why it may not be all.
    """

    name: str
    file: IO[bytes] | None
    problem: str | None = None


class _Reader(Protocol):
    def read(self, n: int, /) -> bytes: ...


def parts_of(file: IO[bytes], head: bytes) -> Iterator[Part]:
    """Return what stands inside a file that begins with `head`; nothing where it is not a container."""
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        yield from _of_zip(file)
    elif is_tar(file):
        yield from _of_tar(file)
    elif head.startswith(b"\x93NUMPY"):
        yield from _of_npy(file)
    for magic, what in _CLOSED.items():
        if head.startswith(magic):
            yield Part("", None, f"{what}, which is not read")
    file.seek(0)
    opened = _opened(file, head)
    if opened is not None:
        yield _unpacked("unpacked", opened)


def _opened(file: IO[bytes], head: bytes) -> "_Reader | None":
    """Return the unpacked side of a packed file."""
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if head.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if head.startswith((b"\xfd7zXZ", b"\x5d\x00\x00")):
        return lzma.LZMAFile(file)
    return _Inflating(file, zlib.MAX_WBITS) if head.startswith(_ZLIB) else None


def is_tar(file: IO[bytes]) -> bool:
    """Tell an archive of tar, as torch does: by opening it."""
    file.seek(257)
    is_named = file.read(5) == b"ustar"
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:"):
            pass
    except (tarfile.TarError, ValueError, OSError, EOFError):
        return is_named
    finally:
        file.seek(0)
    return any(file.read(512))


class _Inflating:
    """The reading side of deflated bytes."""

    def __init__(self, file: IO[bytes], window_bits: int) -> None:
        self._file, self._stream = file, zlib.decompressobj(window_bits)

    def read(self, n: int) -> bytes:
        found = bytearray()
        while len(found) < n and not self._stream.eof:
            packed = self._stream.unconsumed_tail or self._file.read(1 << 16)
            if not packed:
                break
            found += self._stream.decompress(packed, n - len(found))
        return bytes(found)


def _unpacked(name: str, opened: _Reader) -> Part:
    try:
        data = opened.read(MAX_UNPACKED + 1)
    except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        return Part(name, None, f"cannot be unpacked: {error}")
    is_more = len(data) > MAX_UNPACKED
    return Part(
        name, io.BytesIO(data), f"only the first {MAX_UNPACKED >> 20} MiB are read" if is_more else None
    )


def _of_zip(file: IO[bytes]) -> Iterator[Part]:
    for entry in list_entries(file):
        try:
            start = data_start(file, entry.header)
        except ValueError as error:
            yield Part(entry.name, None, str(error))
            continue
        yield _of_entry(entry, window(file, start, entry.nbytes))


def _of_entry(entry: ZipEntry, packed: IO[bytes]) -> Part:
    if entry.method == 0:
        return Part(entry.name, packed, None if entry.is_stored else "encrypted, or of two sizes")
    if entry.method == 8:
        return _unpacked(entry.name, _Inflating(packed, -zlib.MAX_WBITS))
    if entry.method == 12:
        return _unpacked(entry.name, bz2.BZ2File(packed))
    return Part(entry.name, None, f"packed by a method that is not read ({entry.method})")


def _of_tar(file: IO[bytes]) -> Iterator[Part]:
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for number, member in enumerate(archive):
                if number == _MAX_MEMBERS:
                    yield Part("", None, f"more than {_MAX_MEMBERS} members, of which no more are read")
                    return
                if member.isreg():
                    at = file.tell()
                    yield Part(member.name, window(file, member.offset_data, member.size))
                    file.seek(at)
    except (tarfile.TarError, ValueError, OSError, EOFError) as error:
        yield Part("", None, f"a damaged tar archive: {error}")


def _of_npy(file: IO[bytes]) -> Iterator[Part]:
    file.seek(6)
    wide = file.read(2)[:1] > b"\x01"
    n = int.from_bytes(file.read(4 if wide else 2), "little")
    header = file.read(min(n, 1 << 16))
    start = (12 if wide else 10) + n
    if _OBJECTS.search(header):
        yield Part("objects", window(file, start, max(0, file.seek(0, 2) - start)))
