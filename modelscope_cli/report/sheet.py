"""A sheet: rows and columns, and the requested view of them."""

import math
import re
import shlex
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from operator import attrgetter
from typing import Any, cast, get_type_hints

from modelscope_cli.errors import UsageError, nearest_names, with_nearest
from modelscope_cli.plain_text import plain
from modelscope_cli.records.display import FieldColumn
from modelscope_cli.report import numbers

Value = str | int | float | bool | None
Notation = Callable[[Sequence[float | None]], Callable[[float | None], str]]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a sheet."""

    key: str  # its name in tsv, csv and `--columns`
    title: str  # its heading for people
    value: Callable[[Any], Value]  # returns the raw value of a row, for machines
    # Returns the value as text for people; None for the value itself
    text: Callable[[Any], str] | None = None
    is_number: bool = True  # aligned to the right
    rank: int = 1  # in a narrow terminal the highest rank is dropped first; 0 is never dropped
    is_shown: bool = True  # whether the terminal shows it; tsv and csv always have it
    wraps: bool = False  # sentences that may wrap in a narrow terminal
    # Returns a formatter for all values of the column; a non-empty `text` takes precedence
    notation: Notation | None = None
    is_bad: Callable[[Any], bool] = lambda row: False  # whether to highlight the cell
    missing: str = ""  # text for a missing value
    field: str = ""  # its name in JSON, if that is another one
    # Whether most of a row's value comes from rows inside it; sorted, such rows come last
    is_sum: Callable[[Any], bool] = lambda row: False
    also: tuple[str, ...] = ()  # its headings in other tables of the command

    def cells(self, rows: Sequence[Any]) -> list[str]:
        values = [self.value(row) for row in rows]
        if self.text is not None:
            texts = [plain(self.text(row)) for row in rows]
        elif self.notation is None:
            texts = ["" if value is None else plain(str(value)) for value in values]
        else:
            texts = [""] * len(rows)
        if self.notation is not None:
            figures = [float(value) if isinstance(value, int | float) else None for value in values]
            write = self.notation(figures)
            texts = [text or write(figure) for text, figure in zip(texts, figures, strict=True)]
        return [text or self.missing * (value is None) for text, value in zip(texts, values, strict=True)]


_NOTATIONS: dict[str, Notation] = {
    "figure": numbers.notation,
    "change": partial(numbers.notation, is_change=True),
    "amount": numbers.amounts,
    "size": numbers.sizes,
}
_TEXTS: dict[str, Callable[[Any], str]] = {
    "share": numbers.percent,
    "count": numbers.count,
    "signed": numbers.signed,
}


def _column(form: str, key: str, title: str, value: Callable[[Any], Any], **traits: Any) -> Column:
    """Return a column of one of the forms of `FieldColumn`."""
    write = _TEXTS.get(form)
    if form == "counter":
        traits["is_bad"] = lambda row: bool(value(row))
    text = (lambda row: write(value(row))) if write else None
    return Column(key, title, value, text, notation=_NOTATIONS.get(form), **traits)


# Numbers in one notation, so that their magnitudes can be compared; large counts, such as multiply-adds, and bytes
# in one unit; fractions in percent; counts, such as NaN, that are marked unless 0 and never dropped.
figure, amount, size, percentage = (partial(_column, form) for form in ("figure", "amount", "size", "share"))
counter = partial(_column, "counter", rank=0)


def field_columns(kind: type[Any], keys: str, **traits: Any) -> tuple[Column, ...]:
    """Return columns of a record's fields as annotated.

    Args:
        keys: column keys, separated by spaces.
        traits: attributes of `Column` that override the annotations.
    """
    by_key = _described(cast("Hashable", kind))
    return tuple(replace(by_key[key], **traits) for key in keys.split())


def other_columns(kind: type[Any], columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the columns of a record's annotated fields that are not listed yet."""
    keys = {column.key for column in columns}
    return tuple(column for key, column in _described(cast("Hashable", kind)).items() if key not in keys)


def inner_columns(field: str, columns: Iterable[Column]) -> tuple[Column, ...]:
    return tuple(
        replace(one, value=_inside(field, one.value), text=_inside(field, one.text)) for one in columns
    )


def _inside(field: str, read: Callable[[Any], Any] | None) -> Any:
    return None if read is None else lambda row: read(getattr(row, field))


@cache
def _described(kind: Any) -> dict[str, Column]:
    """Return the columns of the annotated fields of a record, by key."""
    hints = get_type_hints(kind, include_extras=True)
    columns = {}
    for field in fields(kind):
        for about in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(about, FieldColumn):
                key = about.key or field.name
                read = _shape_of(field.name) if about.form == "shape" else attrgetter(field.name)
                columns[key] = _column(
                    about.form,
                    key,
                    key.replace("_", " ") if about.title is None else about.title,
                    read,
                    is_number=about.form not in ("words", "shape"),
                    rank=about.rank,
                    is_shown=about.is_shown,
                    wraps=about.wraps,
                    field=field.name,
                )
    return columns


def _shape_of(name: str) -> Callable[[Any], str | None]:
    read = attrgetter(name)
    return lambda row: None if read(row) is None else numbers.shape(read(row))


MOST_ROWS = 60


def is_missing(value: Value) -> bool:
    """Tell whether a value is missing, for display and sorting."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with its title and its facts. Titles, facts and rendered cells are safe to show as they are."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Any, ...]
    facts: tuple[tuple[str, str], ...] = ()  # `(label, text)` lines under the table: totals, model and input
    # Whether a row is less important (a layer that was never called)
    is_dim: Callable[[Any], bool] = lambda row: False
    is_bad: Callable[[Any], bool] = lambda row: False  # whether to mark a row (NaN, dead channels)
    # The column `name` has dotted names of layers or parameters: in a terminal repeated blocks of a long
    # table are folded, and long names are truncated at the start
    is_by_layer: bool = False
    # Neighbouring rows with the same key are one line in a terminal, but for the first and the last; None: never
    alike: Callable[[Any], Hashable] = lambda row: None
    is_tree: bool = False  # the text of the first column depends on the row before
    is_sorted: bool = False  # the rows are in a requested order
    most_rows: int = MOST_ROWS  # that a terminal shows; of more, it folds some
    size: Callable[[Any], float] = lambda row: 0.0  # the rows with the largest are not folded
    # Labels of the facts that explain a column or a term; a page folds them, a terminal has them with -v
    definitions: tuple[str, ...] = ()
    # Labels of the facts that are the answer: the last lines on a screen, the first of a text
    answer: tuple[str, ...] = ("accuracy", "fit", "answer", "verdict")

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", plain(self.title))
        object.__setattr__(self, "facts", tuple((plain(label), plain(text)) for label, text in self.facts))

    def shown(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.is_shown)

    def without_definitions(self) -> "Sheet":
        return replace(self, facts=tuple(one for one in self.facts if one[0] not in self.definitions))

    def facts_of(self, *, is_answer: bool) -> tuple[tuple[str, str], ...]:
        return tuple(one for one in self.facts if (one[0] in self.answer) is is_answer)

    def without_empty_columns(self) -> "Sheet":
        first, *others = self.columns
        columns = [one for one in others if not self.rows or not one.is_shown or any(one.cells(self.rows))]
        return replace(self, columns=(first, *columns))


def choose_columns(columns: Sequence[Column], wanted: str | None) -> tuple[Column, ...]:
    """Return the columns listed by key, in that order; all of them if none are listed."""
    if wanted is None:
        return tuple(columns)
    chosen = [find_column(columns, part, "--columns", wanted) for part in wanted.split(",") if part.strip()]
    if not chosen:
        keys = ",".join(column.key for column in columns if column.is_shown)
        raise UsageError(f"--columns '{wanted}' names no column", f"--columns {keys}")
    return tuple(replace(column, rank=0, is_shown=True) for column in chosen)


def find_column(columns: Sequence[Column], word: str, option: str, typed: str) -> Column:
    """Return a column by its key, its heading on the screen, or its name in JSON.

    Args:
        option: the option whose value `typed` has the word.
    """
    by_name = {_as_typed(title): column for column in columns for title in column.also}
    by_name |= {_as_typed(column.field or column.key): column for column in columns}
    by_name |= {_as_typed(column.title): column for column in columns}
    by_name |= {_as_typed(column.key): column for column in columns}  # a heading may be the key of another
    if _as_typed(word) not in by_name:
        word, keys = word.strip(), ", ".join(column.key for column in columns)
        meant = next(iter(nearest_names(_as_typed(word), by_name)), columns[0].key)
        corrected = re.sub(rf"(?<![^,: ]){re.escape(word)}(?![^,: ])", meant, typed, count=1)
        message = with_nearest(f"unknown column '{word}' in {option} '{typed}'", _as_typed(word), by_name)
        raise UsageError(message, f"{option} {shlex.quote(corrected)}   one of {keys}")
    return by_name[_as_typed(word)]


def _as_typed(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())


@dataclass(frozen=True, slots=True)
class Layout:
    """The requested columns and rows of a table."""

    columns: str | None = None  # column keys, separated by commas; None for all
    # The key of the column to sort by, optionally with `:asc` or `:desc`; by default numbers descend and
    # texts ascend. None keeps the order.
    sort: str | None = None
    top: int | None = None  # number of rows; None for all
    is_whole: bool = False  # whether a terminal shows all rows of a long table

    def check(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the listed columns and the sort column; all of them if none are listed."""
        chosen = choose_columns(columns, self.columns)
        if self.sort is None:
            return chosen
        column, _ = self._order(columns)
        return chosen if any(one.key == column.key for one in chosen) else (*chosen, column)

    def arrange(self, sheet: Sheet) -> Sheet:
        """Return the sheet with the requested rows and columns."""
        columns = choose_columns(sheet.columns, self.columns)
        rows, facts = sheet.rows, sheet.facts
        if self.sort is not None:
            by, direction = self._order(sheet.columns)
            rows = tuple(sorted(_sorted(rows, by, direction), key=by.is_sum))
            if any(map(by.is_sum, rows)):
                facts = (*facts, ("order", "layers that contain others come last"))
        if self.top is not None and self.top < len(rows):
            facts = (*facts, ("shown", f"{self.top} of {len(rows):,} rows"))
        if self.sort is not None and sheet.is_tree:  # rows depend on the row before
            columns = tuple(
                replace(one, text=None) if one.key == sheet.columns[0].key else one for one in columns
            )
        is_sorted = sheet.is_sorted or self.sort is not None
        return replace(sheet, columns=columns, rows=rows[: self.top], facts=facts, is_sorted=is_sorted)

    def _order(self, columns: Sequence[Column]) -> tuple[Column, str]:
        assert self.sort is not None
        key, _, direction = self.sort.partition(":")
        column = find_column(columns, key, "--sort", self.sort)
        if ":" in self.sort and direction not in ("asc", "desc"):
            message = f"'--sort {self.sort}' must end in :asc or :desc"
            raise UsageError(message, f"--sort {column.key}:asc")
        return column, direction


def _sorted(rows: Sequence[Any], column: Column, direction: str) -> list[Any]:
    """Sort rows by a column; missing values come last in either direction."""
    pairs = [(column.value(row), row) for row in rows]
    present = [pair for pair in pairs if not is_missing(pair[0])]
    is_text = any(isinstance(value, str) for value, _ in present)
    is_falling = direction == "desc" or (not direction and not is_text)
    key: Callable[[Any], Any] = natural_key if is_text else lambda value: value
    present.sort(key=lambda pair: key(pair[0]), reverse=is_falling)
    return [row for _, row in present] + [row for value, row in pairs if is_missing(value)]


def natural_key(value: Any) -> list[tuple[int, str]]:
    """Return a sort key of texts in natural order, `layer2` before `layer10`."""
    words = re.split(r"(\d+)", str(value).casefold())
    return [(int(word), "") if n % 2 else (0, word) for n, word in enumerate(words)]
