"""Images that cannot be decoded: of which kind, how many, and what the first of each are called."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass

from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.run import BrokenKind, Notice

EMPTY, NOT_AN_IMAGE, TRUNCATED = "empty", "not an image", "truncated"
TOO_LARGE, OF_32_BITS, UNREADABLE = "too large", "32-bit", "unreadable"
_MOST_NAMED = 10  # of each kind in the record
_MOST_SHOWN = 3  # of each kind on one line


class BrokenImageError(CannotRunError):
    """An image that cannot be decoded. Exit code 4 where it has to be.

    Attributes:
        kind: one of the words above.
    """

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Broken:
    """An image that could not be decoded: its number in the list of images, its name, and why."""

    number: int
    name: str
    kind: str


class BrokenImages:
    """Counts broken images once, however often and in whatever order their blocks are gone through."""

    def __init__(self) -> None:
        self._seen = bytearray()  # a bit a block
        self._counts: dict[str, int] = {}
        self._first: dict[str, list[tuple[int, str]]] = {}  # heaps, the last of the first on top

    def __len__(self) -> int:
        return sum(self._counts.values())

    def take(self, block: int, broken: Iterable[Broken]) -> None:
        """Count those of a block, unless they were counted before."""
        at, bit = divmod(block, 8)
        self._seen.extend(bytes(max(0, at + 1 - len(self._seen))))
        if self._seen[at] >> bit & 1:
            return
        self._seen[at] |= 1 << bit
        for one in broken:
            self._counts[one.kind] = self._counts.get(one.kind, 0) + 1
            heap = self._first.setdefault(one.kind, [])
            push = heapq.heappush if len(heap) < _MOST_NAMED else heapq.heappushpop
            push(heap, (-one.number, one.name))

    def kinds(self) -> tuple[BrokenKind, ...]:
        """Return every kind there is, the commonest first."""
        kinds = sorted(self._counts, key=lambda kind: (-self._counts[kind], kind))
        return tuple(
            BrokenKind(
                kind, self._counts[kind], tuple(name for _, name in sorted(self._first[kind], reverse=True))
            )
            for kind in kinds
        )

    def warnings(self, n_listed: int) -> tuple[Notice, ...]:
        """Say how many of the images that were listed could not be read; nothing where all could."""
        if not self._counts:
            return ()
        message = f"{len(self):,} of {counted(n_listed, 'image')} could not be read: {in_words(self.kinds())}"
        return (Notice("broken-images", message),)


def in_words(kinds: Iterable[BrokenKind]) -> str:
    """Return the counts with the first names: `2 truncated ('a.jpg', 'b.jpg'), 1 empty ('c.jpg')`."""
    return ", ".join(f"{one.count:,} {one.kind} ({_named(one)})" for one in kinds)


def _named(kind: BrokenKind) -> str:
    shown = [f"'{name}'" for name in kind.names[:_MOST_SHOWN]]
    return some([*shown, *[""] * (kind.count - len(shown))], _MOST_SHOWN)
