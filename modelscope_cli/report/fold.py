"""Fold long tables in a terminal: important rows, and a line for each range or repeated block of others."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from modelscope_cli.records.naming import counted
from modelscope_cli.report.sheet import Column, Sheet, is_missing

_LEAST = 5  # rows of a block that is folded
_Signature = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """Rows of blocks with the same structure as an earlier one."""

    # start, stop: the range of row indices, `stop` excluded
    start: int
    stop: int
    names: tuple[str, ...]  # names of the blocks
    like: str  # name of the earlier block


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
    labels: dict[_Signature, str] | None,
) -> Iterator[Repeat]:
    first_blocks = {} if labels is None else labels
    alike: list[_RowBlock] = []
    like = ""
    for block in _blocks(rows, around, depth):
        signature = tuple(
            (".".join(parts[depth + 1 :]), type) for parts, type in rows[block.start : block.stop]
        )
        earlier = first_blocks.get(signature)
        if alike and earlier != like:
            yield _told(alike, like)
            alike = []
        if earlier is not None:
            like = earlier
            alike.append(block)
        elif len(signature) >= _LEAST:
            first_blocks[signature] = block.name
            yield from _repeats(rows, block, depth + 1, labels)
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
    return Repeat(alike[0].start, alike[-1].stop, tuple(block.name for block in alike), like)


MOST_ROWS = 60
_FIRST, _LAST, _MOST_BAD = 15, 5, 20
_MOST_NAMED = 3  # rows or ranges in a line
_SIZES = ("output", "params", "macs")  # columns that tell the size of a block


@dataclass(frozen=True, slots=True)
class Folded:
    """The visible rows of a long table."""

    kept: tuple[int, ...]  # indices of the visible rows
    lines: dict[int, tuple[str, ...]]  # descriptions of each hidden range, by the index of the row after it
    # `(row index, column key)` of the cells with the largest or smallest number of a column
    extremes: frozenset[tuple[int, str]]
    n_bad: int  # number of hidden marked rows


def fold(sheet: Sheet, most: int = MOST_ROWS) -> Folded | None:
    """Choose the rows of a table with more than `most`; None if all are shown.

    Marked rows, column extremes, and the first and last rows stay; blocks that repeat an earlier one are hidden
    first.
    """
    n = len(sheet.rows)
    if n <= most or sheet.is_catalogue:
        return None
    bad = [place for place, row in enumerate(sheet.rows) if sheet.is_bad(row)]
    ends = dict(_extremes(sheet)) if sheet.is_by_layer and not sheet.is_sorted else {}
    needed = {0, n - 1, *bad[:_MOST_BAD], *(place for place, _ in ends)}
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
    reasons = _reasons(bad, ends)
    words = {
        one: _described(sheet, labels, one) + _exceptions(labels, one, visible, reasons) for one in repeats
    }
    lines = _lines(n, visible, words, reasons)
    return Folded(visible, lines, frozenset(ends), len(set(bad) - set(visible)))


def _reasons(bad: Sequence[int], ends: Mapping[tuple[int, str], str]) -> dict[int, str]:
    """Return why a row is shown, by its index: `marked, largest std`."""
    words: dict[int, list[str]] = {place: ["marked"] for place in bad}
    for (place, _), end in ends.items():
        words.setdefault(place, []).append(end)
    return {place: ", ".join(each[:2]) for place, each in words.items()}


def _exceptions(
    labels: Sequence[str], one: Repeat, visible: Sequence[int], reasons: Mapping[int, str]
) -> str:
    """Name the rows inside a folded range that are shown all the same, and why."""
    kept = [place for place in visible if one.start <= place < one.stop and place in reasons]
    texts = [f"{labels[place]} ({reasons[place]})" for place in kept[:_MOST_NAMED]]
    more = f" and {len(kept) - _MOST_NAMED} more" if len(kept) > _MOST_NAMED else ""
    return f"; all but {', '.join(texts)}{more}" if kept else ""


def _described(sheet: Sheet, labels: Sequence[str], one: Repeat) -> str:
    """Describe folded blocks: how many, their shape and size, or the range of their numbers.

    They are "like" an earlier block only if all their visible figures are those of that block.
    """
    columns = [column for column in sheet.shown() if column.key != "name"]
    cells = {column.key: column.cells(sheet.rows) for column in columns}
    rows = range(one.start, one.stop)
    first = next(n for n, label in enumerate(labels) if f"{label}.".startswith(f"{one.like}."))
    length = len(rows) // len(one.names)
    is_equal = all(
        cells[key][place] == cells[key][first + (place - one.start) % length]
        for key in cells
        for place in rows
    )
    many = f" .. {one.names[-1]}: {len(one.names)} blocks" if len(one.names) > 1 else ":"
    words = f"{one.names[0]}{many} {'like' if is_equal else 'with the layers of'} {one.like}"
    heads = [place for place in rows if labels[place] in one.names]
    if heads:
        sizes = [
            _range(column, sheet, cells[column.key], heads) for column in columns if column.key in _SIZES
        ]
        return ", ".join([words, *filter(None, sizes)])
    ranked = sorted((column for column in columns if column.is_number), key=lambda column: column.rank)
    ranges = [_range(column, sheet, cells[column.key], rows) for column in ranked]
    return (
        words if is_equal else ", ".join([words, *[text for text in ranges if " .. " in text][:_MOST_NAMED]])
    )


def _range(column: Column, sheet: Sheet, cells: Sequence[str], places: Sequence[int]) -> str:
    """Return `std 0.31 .. 1.2`; `280,064 params each` if all are equal, and a shape if that is all there is."""
    filled = {cells[place]: column.value(sheet.rows[place]) for place in places if cells[place]}
    if not column.is_number:
        return next(iter(filled)) if len(filled) == 1 else ""
    numbers = {text: value for text, value in filled.items() if isinstance(value, int | float)}
    if len(numbers) < 2:
        each = " each" if len(places) > 1 else ""
        return "".join(f"{text} {column.title}{each}" for text in numbers)
    low, high = (end(numbers, key=lambda text: numbers[text]) for end in (min, max))
    return f"{column.title} {low} .. {high}"


def _labels(sheet: Sheet) -> tuple[list[str], list[str]]:
    """Return the names and types of the layers; empty if the rows are not in model order."""
    by_key = {column.key: column for column in sheet.columns}
    if not sheet.is_by_layer or sheet.is_sorted or "name" not in by_key:
        return [], []
    names = [str(by_key["name"].value(row)) for row in sheet.rows]
    return names, [str(by_key["type"].value(row)) if "type" in by_key else "" for row in sheet.rows]


def _extremes(sheet: Sheet) -> Iterator[tuple[tuple[int, str], str]]:
    """Yield the cells with the unique largest or smallest number of their column: `largest std`."""
    for column in sheet.shown():
        values = {place: column.value(row) for place, row in enumerate(sheet.rows)}
        numbers = {
            place: value
            for place, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and not is_missing(value)
        }
        for word, end in (("largest", max), ("smallest", min)) if numbers else ():
            most = end(numbers.values())
            places = [place for place, value in numbers.items() if value == most]
            if len(places) == 1:
                yield (places[0], column.key), f"{word} {column.title or column.key}"


def _lines(
    n: int, kept: Sequence[int], words: Mapping[Repeat, str], reasons: Mapping[int, str]
) -> dict[int, tuple[str, ...]]:
    """Describe the hidden ranges: repeated blocks, each once, or the number of rows and why the next is shown."""
    owner = {place: one for one in words for place in range(one.start, one.stop)}
    described: set[Repeat] = set()
    lines: dict[int, tuple[str, ...]] = {}
    for before, after in zip((-1, *kept), (*kept, n), strict=True):
        texts = []
        for one, places in groupby(range(before + 1, after), owner.get):
            if one is None:
                why = f"; next: {reasons[after]}" if after in reasons else ""
                texts.append(counted(len(list(places)), "row") + why)
            elif one not in described:
                described.add(one)
                texts.append(words[one])
        if texts:
            lines[after] = tuple(texts)
    return lines
