"""Blocks that a deep model repeats: rows that only say again, under another number, what rows before them do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_LEAST = 5  # rows of a block; of fewer there is nothing to fold
_Signature = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Rows of blocks that are made as one before them.

    Attributes:
        start, stop: the places of the rows, `stop` not one of them.
        text: `layer3.2 .. layer3.22: 21 blocks like layer3.1`.
    """

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class _Block:
    name: str
    start: int
    stop: int


def find_repeats(labels: Sequence[str], types: Sequence[str], *, is_anywhere: bool) -> list[Repeat]:
    """Return the blocks that hold the same layers, by name and type, as one that stands before them.

    Args:
        labels: of the rows, with dots between the parts: `layer3.1.conv2`.
        is_anywhere: whether the one before may be in another part of the model, `layer1.1` for `layer3.1`.
    """
    rows = list(zip([tuple(label.split(".")) for label in labels], types, strict=True))
    return list(_repeats(rows, _Block("", 0, len(rows)), 0, {} if is_anywhere else None))


def _repeats(
    rows: Sequence[tuple[tuple[str, ...], str]],
    around: _Block,
    depth: int,
    known: dict[_Signature, str] | None,
) -> Iterator[Repeat]:
    seen = {} if known is None else known
    alike: list[_Block] = []
    like = ""
    for block in _blocks(rows, around, depth):
        signature = tuple(
            (".".join(parts[depth + 1 :]), type) for parts, type in rows[block.start : block.stop]
        )
        is_block = len(signature) >= _LEAST
        if is_block and signature in seen and (not alike or like == seen[signature]):
            like = seen[signature]
            alike.append(block)
            continue
        if alike:
            yield _told(alike, like)
            alike = []
        if is_block and signature in seen:
            like = seen[signature]
            alike = [block]
        elif is_block:
            seen[signature] = block.name
            yield from _repeats(rows, block, depth + 1, known)
    if alike:
        yield _told(alike, like)


def _blocks(rows: Sequence[tuple[tuple[str, ...], str]], around: _Block, depth: int) -> Iterator[_Block]:
    """Give the stretches of rows whose labels begin with the same parts, one more than those around them."""
    start = around.start
    while start < around.stop:
        head = rows[start][0][: depth + 1]
        stop = start + 1
        while stop < around.stop and rows[stop][0][: depth + 1] == head:
            stop += 1
        yield _Block(".".join(head), start, stop)
        start = stop


def _told(alike: Sequence[_Block], like: str) -> Repeat:
    first, last = alike[0], alike[-1]
    names = (
        f"{first.name}: like" if first is last else f"{first.name} .. {last.name}: {len(alike)} blocks like"
    )
    return Repeat(first.start, last.stop, f"{names} {like}")
