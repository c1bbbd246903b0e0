"""Fold long tables in a terminal: important rows, and a line for each range or repeated block of others."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from modelscope_cli.records.naming import counted
from modelscope_cli.report.sheet import Sheet, is_missing

_LEAST = 5  # rows of a block that is folded
_Signature = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Rows of blocks with the same structure as an earlier one.

    Attributes:
        start, stop: the range of row indices, `stop` excluded.
        text: `layer3.2 .. layer3.22: 21 blocks like layer3.1`.
    """

    start: int
    stop: int
    text: str


@dataclass(frozen=True, slots=True)
class _RowBlock:
    name: str
    start: int
    stop: int


def find_repeats(labels: Sequence[str], types: Sequence[str], *, is_anywhere: bool) -> list[Repeat]:
    """Return the blocks that have the same layers, by name and type, as an earlier one.

    Args:
        labels: row labels with dots between the parts: `layer3.1.conv2`.
        is_anywhere: whether the earlier one may be in another part of the model, `layer1.1` for `layer3.1`.
    """
    rows = list(zip([tuple(label.split(".")) for label in labels], types, strict=True))
    return list(_repeats(rows, _RowBlock("", 0, len(rows)), 0, {} if is_anywhere else None))


def _repeats(
    rows: Sequence[tuple[tuple[str, ...], str]],
    around: _RowBlock,
    depth: int,
    known: dict[_Signature, str] | None,
) -> Iterator[Repeat]:
    first_blocks = {} if known is None else known
    alike: list[_RowBlock] = []
    like = ""
    for block in _blocks(rows, around, depth):
        signature = tuple(
            (".".join(parts[depth + 1 :]), type) for parts, type in rows[block.start : block.stop]
        )
        is_block = len(signature) >= _LEAST
        if is_block and signature in first_blocks and (not alike or like == first_blocks[signature]):
            like = first_blocks[signature]
            alike.append(block)
            continue
        if alike:
            yield _told(alike, like)
            alike = []
        if is_block and signature in first_blocks:
            like = first_blocks[signature]
            alike = [block]
        elif is_block:
            first_blocks[signature] = block.name
            yield from _repeats(rows, block, depth + 1, known)
    if alike:
        yield _told(alike, like)


def _blocks(
    rows: Sequence[tuple[tuple[str, ...], str]], around: _RowBlock, depth: int
) -> Iterator[_RowBlock]:
    """Yield the runs of rows within `around` whose labels share one more leading part."""
    start = around.start
    while start < around.stop:
        head = rows[start][0][: depth + 1]
        stop = start + 1
        while stop < around.stop and rows[stop][0][: depth + 1] == head:
            stop += 1
        yield _RowBlock(".".join(head), start, stop)
        start = stop


def _told(alike: Sequence[_RowBlock], like: str) -> Repeat:
    first, last = alike[0], alike[-1]
    names = (
        f"{first.name}: like" if first is last else f"{first.name} .. {last.name}: {len(alike)} blocks like"
    )
    return Repeat(first.start, last.stop, f"{names} {like}")


MOST_ROWS = 60
_FIRST, _LAST, _MOST_BAD = 15, 5, 20


@dataclass(frozen=True, slots=True)
class Folded:
    """The visible rows of a long table.

    Attributes:
        kept: indices of the visible rows.
        lines: descriptions of each hidden range, by the index of the row after it.
        extremes: `(row index, column key)` of the cells with the largest or smallest number of a column.
        n_bad: number of hidden marked rows.
    """

    kept: tuple[int, ...]
    lines: dict[int, tuple[str, ...]]
    extremes: frozenset[tuple[int, str]]
    n_bad: int


def fold(sheet: Sheet, most: int = MOST_ROWS) -> Folded | None:
    """Choose the rows of a table with more than `most`; None if all are shown.

    Marked rows, column extremes, and the first and last rows stay; blocks that repeat an earlier one are hidden
    first.
    """
    n = len(sheet.rows)
    if n <= most or sheet.is_catalogue:
        return None
    bad = [place for place, row in enumerate(sheet.rows) if sheet.is_bad(row)]
    extremes = frozenset(_extremes(sheet)) if sheet.is_by_layer and not sheet.is_sorted else frozenset()
    needed = {0, n - 1, *bad[:_MOST_BAD], *(place for place, _ in extremes)}
    repeats: list[Repeat] = []
    kept: Collection[int] = range(n)
    labels, types = _labels(sheet)
    for is_anywhere in (False, True) if labels else ():
        repeats = find_repeats(labels, types, is_anywhere=is_anywhere)
        repeated = {place for one in repeats for place in range(one.start, one.stop)}
        kept = needed.union(range(n)) - (repeated - needed)
        if len(kept) + len(repeats) <= most:
            break
    else:
        needed.update(range(n - _LAST, n))
        others = [place for place in sorted(kept) if place not in needed]
        kept = needed.union(others[: max(_FIRST, most - len(needed))])
    visible = tuple(sorted(kept))
    return Folded(visible, _lines(n, visible, repeats), extremes, len(set(bad) - set(visible)))


def _labels(sheet: Sheet) -> tuple[list[str], list[str]]:
    """Return the names and types of the layers; empty if the rows are not in model order."""
    by_key = {column.key: column for column in sheet.columns}
    if not sheet.is_by_layer or sheet.is_sorted or "name" not in by_key:
        return [], []
    names = [str(by_key["name"].value(row)) for row in sheet.rows]
    return names, [str(by_key["type"].value(row)) if "type" in by_key else "" for row in sheet.rows]


def _extremes(sheet: Sheet) -> Iterator[tuple[int, str]]:
    """Yield the cells with the unique largest or smallest number of their column."""
    for column in sheet.shown():
        values = {place: column.value(row) for place, row in enumerate(sheet.rows)}
        numbers = {
            place: value
            for place, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and not is_missing(value)
        }
        for end in {min(numbers.values()), max(numbers.values())} if numbers else ():
            places = [place for place, value in numbers.items() if value == end]
            if len(places) == 1:
                yield places[0], column.key


def _lines(n: int, kept: Sequence[int], repeats: Sequence[Repeat]) -> dict[int, tuple[str, ...]]:
    """Describe the hidden ranges: the repeated blocks, each once, or the number of rows."""
    owner = {place: one for one in repeats for place in range(one.start, one.stop)}
    described: set[Repeat] = set()
    lines: dict[int, tuple[str, ...]] = {}
    for before, after in zip((-1, *kept), (*kept, n), strict=True):
        texts = []
        for one, places in groupby(range(before + 1, after), owner.get):
            if one is None:
                texts.append(counted(len(list(places)), "row"))
            elif one not in described:
                described.add(one)
                texts.append(one.text)
        if texts:
            lines[after] = tuple(texts)
    return lines
