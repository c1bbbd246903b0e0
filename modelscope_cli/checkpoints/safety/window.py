"""A part of a file as a file of its own. Standard library."""

import io
from typing import IO, Any


class _Window(io.RawIOBase):
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
    """Return `nbytes` of a file from `start` on as a file."""
    return io.BufferedReader(_Window(file, start, nbytes))
