"""A sheet: rows and columns ready for any text format, between the records and the formats."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.plain_text import plain

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a sheet.

    Attributes:
        key: its name in tsv, csv and `--columns`.
        title: its name where people read.
        value: the bare value of a row, for machines.
        text: the same for people; the value as it is where None.
        is_number: aligned to the right.
        rank: in a narrow terminal the highest rank goes first; 0 never goes.
        is_shown: left out of a person's table otherwise, never of tsv and csv.
        wraps: sentences, which go over several lines where the terminal is narrow.
    """

    key: str
    title: str
    value: Callable[[Any], Value]
    text: Callable[[Any], str] | None = None
    is_number: bool = True
    rank: int = 1
    is_shown: bool = True
    wraps: bool = False

    def render(self, row: Any) -> str:
        """Return the cell as people read it."""
        if self.text is not None:
            return plain(self.text(row))
        value = self.value(row)
        return "" if value is None else plain(str(value))


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with what stands above and below it. Titles, facts and rendered cells are safe to show as they are.

    Attributes:
        facts: `(label, text)` lines under the table: totals, what was run on what.
        is_dim: whether a row is of less interest (a layer that was never called).
        is_bad: whether a row deserves a look (NaN, dead channels).
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Any, ...]
    facts: tuple[tuple[str, str], ...] = ()
    is_dim: Callable[[Any], bool] = lambda row: False
    is_bad: Callable[[Any], bool] = lambda row: False

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", plain(self.title))
        object.__setattr__(self, "facts", tuple((plain(label), plain(text)) for label, text in self.facts))

    def shown(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.is_shown)


def choose_columns(columns: Sequence[Column], wanted: str | None) -> tuple[Column, ...]:
    """Return the columns a person listed by key, in that order; all of them where nothing was listed.

    Raises:
        UsageError: an unknown key; names the near ones and lists all (exit 2).
    """
    if wanted is None:
        return tuple(columns)
    by_key = {column.key: column for column in columns}
    chosen = []
    for key in filter(None, (part.strip().lower().replace("-", "_") for part in wanted.split(","))):
        if key not in by_key:
            near = nearest(key, by_key)
            message = f"unknown column '{key}' in --columns '{wanted}'" + (f": {near}" if near else "")
            raise UsageError(message, f"--columns {','.join(by_key)}")
        chosen.append(replace(by_key[key], rank=0, is_shown=True))
    if not chosen:
        raise UsageError(f"--columns '{wanted}' names no column", f"--columns {','.join(by_key)}")
    return tuple(chosen)
