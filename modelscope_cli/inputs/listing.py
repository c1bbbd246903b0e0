"""Keep the list of image files, of any length, in few objects."""

import hashlib
import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import overload

from modelscope_cli.library_types import Image


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

    def __init__(self, files: Iterable[ListedImage]) -> None:
        names, ends = bytearray(), array("q")
        self._given: dict[int, ListedImage] = {}  # inputs other than files that can be reopened
        for n, file in enumerate(files):
            if file.content is not None or file.image is not None:
                self._given[n] = file
            names += os.fsencode(file.name)
            ends.append(len(names))
        self._n = len(ends)
        self._names, self._ends = names, ends
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


class FileGroups(Sequence[Sequence[ListedImage]]):
    """Fixed groups of files: group `b` has the files `b * size` to `(b + 1) * size - 1`."""

    def __init__(self, files: Sequence[ListedImage], size: int) -> None:
        self._files, self.size = files, size

    def __len__(self) -> int:
        return (len(self._files) + self.size - 1) // self.size

    @overload
    def __getitem__(self, at: int) -> Sequence[ListedImage]: ...
    @overload
    def __getitem__(self, at: slice) -> list[Sequence[ListedImage]]: ...
    def __getitem__(self, at: int | slice) -> Sequence[ListedImage] | list[Sequence[ListedImage]]:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        n = range(len(self))[at]
        return self._files[n * self.size : (n + 1) * self.size]


by_bytes: Callable[[str], bytes] = os.fsencode
"""The order of files: that of the bytes of their names, the same in every locale."""
