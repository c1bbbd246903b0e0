"""Open the content of zip archives and arrays, and find programs in them. Standard library."""

import io
import json
import re
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any

from modelscope_cli.checkpoints.numpy_arrays import has_objects, npy_start
from modelscope_cli.checkpoints.zip_directory import (
    ZipEntry,
    appended_archive,
    data_start,
    doubt_of_directory,
    list_entries,
    torch_records,
)
from modelscope_cli.plain_text import plain
from modelscope_cli.records.weights import DANGEROUS, UNKNOWN, Suspect


class _FileSlice(io.RawIOBase):
    def __init__(self, file: IO[bytes], start: int, nbytes: int) -> None:
        super().__init__()
        self._file, self._start, self._nbytes, self._at = file, start, nbytes, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, offset + (0, self._at, self._nbytes)[whence])
        return self._at

    def readinto(self, buffer: Any) -> int:
        n = max(0, min(len(buffer), self._nbytes - self._at))
        self._file.seek(self._start + self._at)
        data = self._file.read(n)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def window(file: IO[bytes], start: int, nbytes: int) -> IO[bytes]:
    """Return `nbytes` of a file from `start` as a file."""
    return io.BufferedReader(_FileSlice(file, start, nbytes))


MAX_UNPACKED = 64 << 20
# Total unpacked bytes per file, in addition to four for each of its own.
MAX_ALL_UNPACKED = 512 << 20
_N_HEAD = 1 << 16
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
NOT_JUDGED = "not judged: this tool judges what PyTorch, NumPy and safetensors load"
_CLOSED = {
    **{b"7z\xbc\xaf\x27\x1c": "a 7z archive", b"Rar!": "a RAR archive"},
    **{b"\x28\xb5\x2f\xfd": "packed by zstd", b"\x04\x22\x4d\x18": "packed by lz4"},
    **{b"\x1f\x8b": "packed by gzip", b"BZh": "packed by bzip2"},
    **{b"\xfd7zXZ": "packed by xz", b"\x5d\x00": "packed by lzma"},
    **dict.fromkeys((b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda"), "packed by zlib"),
    **{b"\x89HDF": "an HDF5 file, as written by Keras", b"GGUF": "a llama.cpp GGUF file"},
}
# Archive members that torch.package, torch._inductor or Keras may run.
_CODE = re.compile(r"(?i).*\.(?:py|pyc|pyd|so|dll|dylib|sh)")


@dataclass(frozen=True, slots=True)
class Part:
    """A file inside another."""

    name: str
    file: IO[bytes] | None  # None if unavailable, for the reason in `problem`
    problem: str | None = None  # why it may be incomplete
    is_certain: bool = False  # whether `problem` is reported even if pickles are found in it
    is_code: bool = False  # whether its name is that of a program
    is_storage: bool = False  # whether torch reads it as tensor values
    n_unpacked: int = 0  # bytes of memory it takes


def parts_of(file: IO[bytes], head: bytes) -> Iterator[Part]:
    """Yield the parts of a file that begins with `head`; none if it is not a container."""
    if head.startswith(ZIP):
        yield from _of_zip(file)
    elif is_tar(file):
        yield Part("", None, f"a tar archive, {NOT_JUDGED}")
    elif head.startswith(b"\x93NUMPY"):
        yield from _of_npy(file)
    for magic, description in _CLOSED.items():
        if head.startswith(magic):
            yield Part("", None, f"{description}, {NOT_JUDGED}")


def is_tar(file: IO[bytes]) -> bool:
    """Tell whether a file is a tar archive, by opening it, as torch does."""
    file.seek(0)
    block = file.read(tarfile.BLOCKSIZE)
    is_named = block[257:262] == b"ustar"
    if len(block) < tarfile.BLOCKSIZE or not block.strip(b"\0"):
        return is_named
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:"):
            pass
    except (tarfile.TarError, ValueError, OSError, EOFError):
        return is_named
    finally:
        file.seek(0)
    return True


class _Inflating:
    """Reader of deflated bytes."""

    def __init__(self, file: IO[bytes], window_bits: int) -> None:
        self._file, self._stream = file, zlib.decompressobj(window_bits)

    def read(self, n: int) -> bytes:
        unpacked = bytearray()
        while len(unpacked) < n and not self._stream.eof:
            packed = self._stream.unconsumed_tail or self._file.read(1 << 16)
            if not packed:
                break
            unpacked += self._stream.decompress(packed, n - len(unpacked))
        return bytes(unpacked)


def _unpacked(name: str, opened: "_Inflating") -> Part:
    try:
        data = opened.read(_N_HEAD)
        if not _is_plain_array(data):
            data += opened.read(MAX_UNPACKED + 1 - len(data))
    except (zlib.error, OSError, EOFError, ValueError) as error:
        return Part(name, None, f"cannot be unpacked: {error}")
    is_more = len(data) > MAX_UNPACKED
    problem = f"only the first {MAX_UNPACKED >> 20} MiB are read" if is_more else None
    return Part(name, io.BytesIO(data), problem, n_unpacked=len(data))


def _is_plain_array(data: bytes) -> bool:
    """Tell whether data begins like an .npy file without objects, so without a pickle."""
    try:
        return not has_objects(io.BytesIO(data))
    except ValueError:
        return False


def _of_zip(file: IO[bytes]) -> Iterator[Part]:
    try:
        entries = list_entries(file)
        doubt = doubt_of_directory(file, len(entries))
    except ValueError as error:
        entries, doubt = [], str(error)
    try:
        records = torch_records(entries)
    except ValueError as error:
        records, doubt = {}, str(error)
    if doubt is not None:
        start = appended_archive(file) or 0
        yield Part(
            "", window(file, start, file.seek(0, 2) - start) if start else None, doubt, is_certain=True
        )
    is_torch, is_script = "data.pkl" in records, "constants.pkl" in records
    storages = {
        entry
        for name, entry in records.items()
        if is_torch and name.startswith("data/") and name[5:].isdecimal()
    }
    if is_script:
        yield Part("TorchScript", None, is_code=True)
    for entry in entries:
        if _CODE.fullmatch(entry.name) and not is_script:
            yield Part(entry.name, None, is_code=True)
        try:
            start = data_start(file, entry.header)
        except ValueError as error:
            yield Part(entry.name, None, str(error))
            continue
        part = _of_entry(entry, window(file, start, entry.nbytes))
        yield replace(part, is_storage=True) if entry in storages else part


def _of_entry(entry: ZipEntry, packed: IO[bytes]) -> Part:
    if entry.method == 0:
        return Part(entry.name, packed, None if entry.is_stored else "encrypted, or listed with two sizes")
    if entry.method == 8:
        return _unpacked(entry.name, _Inflating(packed, -zlib.MAX_WBITS))
    return Part(entry.name, None, f"compressed by an unsupported method ({entry.method})")


def _of_npy(file: IO[bytes]) -> Iterator[Part]:
    problem = None
    try:
        file.seek(0)
        if not has_objects(file):
            return
    except ValueError as error:
        problem = str(error)
    file.seek(0)
    try:
        start = npy_start(file)[1]
    except ValueError as error:
        yield Part("", None, str(error))
        return
    n_values = max(0, file.seek(0, 2) - start)
    yield Part("objects", window(file, start, n_values), problem or "no pickle where its objects should be")
    if problem is not None:
        yield Part("", None, problem)


_MAX_BYTES = 32 << 20
_NATIVE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"#!")
# `Symbol('s0', positive=True)`, `Max(1, s0)`, `floor(s0/2)`; Python functions are in lower case.
_EXPRESSION = re.compile(r"(?:[A-Za-z0-9_ +*/()%,<>=&|~-]|(?<=[0-9])\.(?=[0-9])|'[A-Za-z][A-Za-z0-9_]*')*")
_CALLED = re.compile(r"\b(?!(?:floor|ceiling|log|sqrt|exp|sin|cos|tan)\b)[a-z_]\w*\s*\(|__")


def suspects_of(file: IO[bytes], head: bytes, place: str) -> Iterator[Suspect]:
    """Yield code other than pickles that loading a file could run; raise ValueError if the file is not judged."""
    where = place or "the file itself"
    if place and head.startswith(_NATIVE):
        yield Suspect(plain(place), UNKNOWN, "is a program, which its loader runs", None, where, is_call=True)
    elif not head.strip() or head.lstrip().removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        yield from _of_json(_read(file), where)


def _read(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read(_MAX_BYTES)


def _of_json(data: bytes, place: str) -> Iterator[Suspect]:
    # Parsed JSON takes up to 25 times the memory of its text.
    if not (re.search(rb"class_name|expr_str|\\u00", data)):
        return
    if len(data) == _MAX_BYTES:
        yield Suspect("a configuration", UNKNOWN, f"has more than {_MAX_BYTES >> 20} MiB", None, place)
        return
    try:
        waiting = [json.loads(data)]
    except ValueError:  # any JSON reader fails, too
        return
    except RecursionError:
        yield Suspect("a configuration", UNKNOWN, "is nested too deeply to be read", None, place)
        return
    is_keras = False
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            is_keras = is_keras or (isinstance(value.get("class_name"), str) and "config" in value)
            text = value.get("expr_str")
            if isinstance(text, str) and (not _EXPRESSION.fullmatch(text) or _CALLED.search(text)):
                reason = "is evaluated as Python when torch.export loads it"
                yield Suspect(plain(text)[:60], DANGEROUS, reason, None, place, loader="torch.export.load")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    if is_keras:
        raise ValueError(f"a configuration of Keras, {NOT_JUDGED}")
