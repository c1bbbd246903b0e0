"""Read and verify the directory of a zip archive. Standard library.

Only uncompressed entries, as `torch.save` writes them, can be read, and none may overlap. The format:
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT, sections 4.3.7, 4.3.12 and 4.3.14 to 4.3.16.
"""

import string
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import IO

MAX_DIRECTORY_BYTES = 16 << 20
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s4B4HL2L5H2L")
_LOCAL = struct.Struct("<4s2B4HL2L2H")
_MAX_COMMENT = 0xFFFF
_IN_EXTRA = 0xFFFFFFFF
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


@dataclass(frozen=True, slots=True)
class ZipEntry:
    """One file of an archive: offset of its local header, and its size."""

    name: str
    header: int
    nbytes: int
    is_stored: bool
    method: int = 0  # compression: 0 none, 8 deflate, 12 bzip2
    crc: int = 0  # CRC-32 of its bytes; 0 if it was not computed

    def check(self) -> None:
        """Refuse a compressed entry, which may decompress to any size."""
        if not self.is_stored:
            raise ValueError(f"'{self.name}' is compressed or encrypted, which torch never does")

    def check_bytes(self, data: bytes | memoryview) -> None:
        """Refuse other bytes than were written."""
        if self.is_stored and self.crc not in (0, zlib.crc32(data)):
            raise ValueError(f"the bytes of '{self.name}' do not match their checksum")


def read_directory(file: IO[bytes]) -> dict[str, ZipEntry]:
    entries: dict[str, ZipEntry] = {}
    for entry in list_entries(file):
        if entry.name in entries:
            raise ValueError(f"'{entry.name}' twice")
        entries[entry.name] = entry
    _check_overlaps(list(entries.values()), _find(file, file.seek(0, 2))[0])
    return entries


def torch_records(entries: Sequence[ZipEntry]) -> dict[str, ZipEntry]:
    """Return the entries that torch reads as its records, such as `data.pkl`, by lower-case name.

    All records are in the folder of the first entry.

    Raises:
        ValueError: two of them differ at most in case, and torch reads either.
    """
    folder, slash, _ = entries[0].name.partition("/") if entries else ("", "", "")
    prefix = as_torch_compares(folder + slash)
    records: dict[str, ZipEntry] = {}
    for entry in entries if slash else ():
        name = as_torch_compares(entry.name)
        if name.startswith(prefix):
            if (record := name.removeprefix(prefix)) in records:
                raise ValueError(f"'{entry.name}' twice")
            records[record] = entry
    return records


def as_torch_compares(name: str) -> str:
    """Return the name of an entry in the form torch compares."""
    return name.translate(_LOWER)


def list_entries(file: IO[bytes]) -> list[ZipEntry]:
    """Return all entries in the order of the directory, unchecked."""
    n_file = file.seek(0, 2)
    begin, n_directory, n_entries, _ = _find(file, n_file)
    if n_directory > MAX_DIRECTORY_BYTES or begin + n_directory > n_file:
        raise ValueError(f"a directory of {n_directory} bytes at {begin} in a file of {n_file}")
    file.seek(begin)
    data = file.read(n_directory)
    entries: list[ZipEntry] = []
    at = 0
    while at < n_directory:  # `zipfile` goes by its bytes, miniz by the number of entries
        if at + _CENTRAL.size > n_directory:
            raise ValueError("a truncated directory")
        entry, at = _entry(data, at)
        entries.append(entry)
    if len(entries) < n_entries:
        raise ValueError("a truncated directory")
    return entries


def doubt_of_directory(file: IO[bytes], n_listed: int) -> str | None:
    """Return why two readers of an archive may find different entries in it; None if they cannot.

    miniz and `zipfile` differ in which offset, which count and which of the two end records they go by.
    """
    begin, n_directory, n_entries, end_record = _find(file, file.seek(0, 2))
    if n_entries != n_listed:
        return "a zip directory that holds more than it counts"
    end = begin + n_directory
    is_wide = end_record == end + _END64.size + _LOCATOR64.size
    if not is_wide and end_record != end:
        return "a zip directory that does not end where its end record begins"
    file.seek(end)
    counts, sizes = (n_entries, 0xFFFF), ((n_directory, _IN_EXTRA), (begin, _IN_EXTRA))
    if is_wide:
        wide = file.read(_END64.size)
        if wide[:4] != b"PK\x06\x06" or _LOCATOR64.unpack(file.read(_LOCATOR64.size))[2] != end:
            return "a zip directory that does not end where its end record begins"
    narrow = _END.unpack(file.read(_END.size))[3:7]
    if any(n not in allowed for n, allowed in zip(narrow, (counts, counts, *sizes), strict=True)):
        return "a zip archive with two end records that contradict each other"
    return None


def appended_archive(file: IO[bytes]) -> int | None:
    """Return the offset of an archive at the end of a file of another kind; None without one."""
    try:
        begin, n_directory, _, end = _find(file, file.seek(0, 2))
    except ValueError:
        return None
    return max(0, end - begin - n_directory)


def data_start(file: IO[bytes], header: int) -> int:
    """Return the offset of an entry's bytes, after its local header of variable length."""
    file.seek(header)
    raw = file.read(_LOCAL.size)
    if len(raw) < _LOCAL.size or raw[:4] != b"PK\x03\x04":
        raise ValueError(f"no entry at {header}, although the directory lists one")
    *_, n_name, n_extra = _LOCAL.unpack(raw)
    return header + _LOCAL.size + n_name + n_extra


def read_entry(file: IO[bytes], entry: ZipEntry, limit: int) -> bytes:
    entry.check()
    if entry.nbytes > limit:
        raise ValueError(f"'{entry.name}' of {entry.nbytes} bytes, more than {limit}")
    file.seek(data_start(file, entry.header))
    data = file.read(entry.nbytes)
    if len(data) < entry.nbytes:
        raise ValueError(f"'{entry.name}' beyond the end of the file")
    entry.check_bytes(data)
    return data


def check_records(path: Path) -> None:
    """Refuse an archive with a changed byte, which torch reads without a word."""
    with path.open("rb") as file:
        data = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
        for entry in read_directory(file).values():
            start = data_start(file, entry.header)
            entry.check_bytes(data[start : start + entry.nbytes])


def _find(file: IO[bytes], n_file: int) -> tuple[int, int, int, int]:
    """Return the directory's offset, size and number of entries, and the offset of the end record."""
    n_tail = min(n_file, _END.size + _MAX_COMMENT)
    file.seek(n_file - n_tail)
    tail = file.read(n_tail)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < _END.size:
        raise ValueError("it ends without a zip directory, so a part is missing")
    *_, n_entries, n_directory, begin, _ = _END.unpack_from(tail, at)
    end = n_file - n_tail + at
    if end < _LOCATOR64.size:
        return begin, n_directory, n_entries, end
    file.seek(end - _LOCATOR64.size)
    signature, _, end64, _ = _LOCATOR64.unpack(file.read(_LOCATOR64.size))
    if signature != b"PK\x06\x07":
        return begin, n_directory, n_entries, end
    if end64 > n_file - _END64.size:
        raise ValueError("a zip directory beyond the end of the file")
    file.seek(end64)
    signature, *_, n_entries, n_directory, begin = _END64.unpack(file.read(_END64.size))
    if signature != b"PK\x06\x06":
        raise ValueError("no zip directory where it should be")
    return begin, n_directory, n_entries, end


def _entry(data: bytes, at: int) -> tuple[ZipEntry, int]:
    fields = _CENTRAL.unpack_from(data, at)
    signature, flags, method = fields[0], fields[5], fields[6]
    packed, size, n_name, n_extra, n_comment = fields[10:15]
    header = fields[-1]
    name_at = at + _CENTRAL.size
    end = name_at + n_name + n_extra + n_comment
    if signature != b"PK\x01\x02" or end > len(data):
        raise ValueError("a damaged zip directory")
    name = data[name_at : name_at + n_name].decode("utf-8", errors="replace")
    extra = data[name_at + n_name : name_at + n_name + n_extra]
    size, packed, header = _from_extra(extra, [size, packed, header])
    is_stored = method == 0 and not flags & 1 and size == packed
    return ZipEntry(name, header, packed, is_stored, method, fields[9]), end


def _from_extra(extra: bytes, values: list[int]) -> list[int]:
    """Return the values with those that exceed 32 bits taken from the zip64 extra field."""
    at = 0
    while at + 4 <= len(extra) and _IN_EXTRA in values:
        kind, n = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = iter(struct.unpack_from(f"<{min(n, len(extra) - at - 4) // 8}Q", extra, at + 4))
            return [next(wide, value) if value == _IN_EXTRA else value for value in values]
        at += 4 + n
    return values


def _check_overlaps(entries: list[ZipEntry], end: int) -> None:
    at, before = 0, "the beginning"
    for entry in sorted(entries, key=lambda entry: entry.header):
        if entry.header < at:
            raise ValueError(f"'{entry.name}' overlaps {before}")
        at, before = entry.header + _LOCAL.size + entry.nbytes, f"'{entry.name}'"
    if at > end:
        raise ValueError(f"{before} overlaps the directory")
