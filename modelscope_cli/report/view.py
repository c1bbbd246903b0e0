"""What a person asked to see of a table: which columns, in which order, how many rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.report.sheet import Column, Sheet, choose_columns, find_column, is_missing

_DIRECTIONS = ("asc", "desc")


@dataclass(frozen=True, slots=True)
class View:
    """What was typed.

    Attributes:
        columns: the keys of the columns, with commas between them; None for all.
        sort: the key of the column to sort by, perhaps with `:asc` or `:desc`; otherwise the largest number stands
            first, and texts follow the alphabet. None leaves the rows as they are.
        top: how many rows; None for all.
        is_whole: whether a terminal gets all the rows of a long table as well.
    """

    columns: str | None = None
    sort: str | None = None
    top: int | None = None
    is_whole: bool = False

    def check(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns that somebody listed, and that by which is sorted; all of them where none was listed.

        Raises:
            UsageError: an unknown column, or an order that is none (exit 2).
        """
        chosen = choose_columns(columns, self.columns)
        if self.sort is None:
            return chosen
        column, _ = self._order(columns)
        return chosen if any(one.key == column.key for one in chosen) else (*chosen, column)

    def arrange(self, sheet: Sheet) -> Sheet:
        """Return the sheet with the rows and columns that were asked for.

        Raises:
            UsageError: as `check` (exit 2).
        """
        columns = choose_columns(sheet.columns, self.columns)
        rows = sheet.rows
        if self.sort is not None:
            rows = tuple(_sorted(rows, *self._order(sheet.columns)))
        facts = sheet.facts
        if self.top is not None and self.top < len(rows):
            facts = (*facts, ("shown", f"{self.top} of {len(rows):,} rows"))
        if self.sort is not None and sheet.is_tree:  # a row means nothing any more below another one
            columns = tuple(
                replace(one, text=None) if one.key == sheet.columns[0].key else one for one in columns
            )
        is_sorted = sheet.is_sorted or self.sort is not None
        return replace(sheet, columns=columns, rows=rows[: self.top], facts=facts, is_sorted=is_sorted)

    def _order(self, columns: Sequence[Column]) -> tuple[Column, str]:
        assert self.sort is not None
        key, _, direction = self.sort.partition(":")
        keys = ", ".join(column.key for column in columns)
        column = find_column(
            columns, key, f"--sort '{self.sort}', not one of {keys}", f"--sort {columns[0].key}"
        )
        if ":" in self.sort and direction not in _DIRECTIONS:
            message = f"'--sort {self.sort}' ends in neither :asc nor :desc"
            raise UsageError(message, f"--sort {column.key}:asc")
        return column, direction


def _sorted(rows: Sequence[Any], column: Column, direction: str) -> list[Any]:
    """Sort rows by a column; those without a value come last, whichever the direction."""
    pairs = [(column.value(row), row) for row in rows]
    present = [pair for pair in pairs if not is_missing(pair[0])]
    is_text = any(isinstance(value, str) for value, _ in present)
    is_falling = direction == "desc" or (not direction and not is_text)
    present.sort(key=lambda pair: _key(pair[0], is_text), reverse=is_falling)
    return [row for _, row in present] + [row for value, row in pairs if is_missing(value)]


def _key(value: Any, is_text: bool) -> Any:
    """Return what to compare: numbers as they are, texts so that `layer2` comes before `layer10`."""
    if not is_text:
        return value
    words = re.split(r"(\d+)", str(value).casefold())
    return [(int(word), "") if n % 2 else (0, word) for n, word in enumerate(words)]
