"""Fold long tables in a terminal: important rows, and a line for each range of others."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from modelscope_cli.records.naming import counted
from modelscope_cli.report.sheet import Sheet, is_missing

_LAST, _MOST_BAD = 5, 20


@dataclass(frozen=True, slots=True)
class Folded:
    """The visible rows of a long table."""

    kept: tuple[int, ...]  # indices of the visible rows
    lines: dict[int, str]  # how many rows each hidden range has, by the index of the row after it
    # `(row index, column key)` of the cells with the largest or smallest number of a column
    extremes: frozenset[tuple[int, str]]
    n_bad: int  # number of hidden marked rows


def fold(sheet: Sheet) -> Folded | None:
    """Choose the rows of a table that has too many, or rows that are alike; None if all are shown.

    Marked rows, column extremes, the largest, and the first and last rows stay.
    """
    n, most = len(sheet.rows), sheet.most_rows
    keys = [sheet.alike(row) for row in sheet.rows]
    inner = {
        at for at in range(1, n - 1) if keys[at] is not None and keys[at - 1] == keys[at] == keys[at + 1]
    }
    if n - len(inner) <= most and len(inner) < 2:
        return None
    bad = [place for place, row in enumerate(sheet.rows) if sheet.is_bad(row)]
    ends = frozenset(_extremes(sheet)) if sheet.is_by_layer and not sheet.is_sorted else frozenset()
    needed = {0, *bad[:_MOST_BAD], *(place for place, _ in ends), *range(n - _LAST, n)}
    others = [place for place in range(n) if place not in needed | inner]
    others.sort(key=lambda place: -sheet.size(sheet.rows[place]))
    kept = sorted((needed - inner).union(others[: max(most // 4, most - len(needed))]))
    lines = {}
    for before, after in pairwise(kept):
        if hidden := {*range(before + 1, after)}:
            how = "like these" if hidden <= inner else "hidden"
            lines[after] = f"{counted(len(hidden), 'row')} {how}"
    return Folded(tuple(kept), lines, ends, len(set(bad) - set(kept)))


def _extremes(sheet: Sheet) -> Iterator[tuple[int, str]]:
    """Yield the cells with the unique largest or smallest number of their column, as row and column key."""
    for column in sheet.shown():
        values = {place: column.value(row) for place, row in enumerate(sheet.rows)}
        numbers = {
            place: value
            for place, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and not is_missing(value)
        }
        for end in (max, min) if numbers else ():
            most = end(numbers.values())
            places = [place for place, value in numbers.items() if value == most]
            if len(places) == 1:
                yield places[0], column.key
