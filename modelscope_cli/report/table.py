"""A table for the terminal. Columns that do not fit are dropped, the least important first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from modelscope_cli.records.naming import counted
from modelscope_cli.report.fold import Folded
from modelscope_cli.report.numbers import shortened
from modelscope_cli.report.sheet import Column, Sheet

_GAP = 2  # blanks between two columns
_SENTENCE = 36  # least width of a column of sentences
# Names and types of layers are truncated to these before a column of this rank or less is dropped
_SHORT_NAME, _SHORT_TYPE, _DEAR = 28, 16, 2
_LEAST = 6  # least width of a name when no column is left to drop; numbers are never cut
_MARK = "!"  # after a marked number, without colour
_BAD_CELL, _BAD_ROW, _DIM_ROW, _EXTREME = "bold red", "yellow", "dim", "bold"


@dataclass(frozen=True, slots=True)
class _Written:
    """A column with its cells; `bad` and `extreme` are row indices, `width` is in characters."""

    column: Column
    cells: tuple[str, ...]
    bad: frozenset[int]
    extreme: frozenset[int]
    width: int

    def cell(self, n: int) -> Text:
        return Text(self.cells[n], _BAD_CELL if n in self.bad else _EXTREME if n in self.extreme else "")

    def given(self, width: int) -> "_Written":
        """Return the column in a width: sentences wrap, names keep their end, the most specific part."""
        is_cut = not self.column.wraps and width < max(map(cell_len, self.cells), default=0)
        cells = tuple(shortened(cell, width) for cell in self.cells) if is_cut else self.cells
        return replace(self, cells=cells, width=width)


def render_table(sheet: Sheet, width: int | None, folded: Folded | None = None) -> RenderableType:
    """Return a table for Rich.

    Args:
        width: of a screen, which shows the end first: the answer is the last line. None for a text, which is read
            from its beginning: all columns, and the answer under the title.
        folded: the visible rows; None for all.
    """
    whole = folded or Folded(tuple(range(len(sheet.rows))), {}, frozenset(), 0)
    columns, dropped = _fit(_write(sheet, whole), width, can_cut=sheet.is_by_layer and not sheet.is_tree)
    notes = [_hidden(sheet, folded, width)] if folded is not None else []
    if dropped:
        keys = ", ".join(one.column.key for one in dropped)
        notes.append(f"hidden at this width: {keys} (--columns)")
    answer, others = sheet.facts_of(is_answer=True), sheet.facts_of(is_answer=False)
    above, below = (answer, others) if width is None else ((), (*others, *answer))
    parts: list[RenderableType] = [Text(sheet.title, style="bold")]
    for block in (
        [_facts(above)] * bool(above),
        list(_rows(sheet, whole, columns)) if sheet.rows else [],
        [Text(note, "dim") for note in notes],
        [_facts(below)] * bool(below),
    ):
        parts += [Text(), *block] if block else []
    return Group(*parts)


def _write(sheet: Sheet, folded: Folded) -> list[_Written]:
    rows = [sheet.rows[place] for place in folded.kept]
    lines = []
    for column in sheet.shown():
        cells = column.cells(rows)
        bad = frozenset(n for n, row in enumerate(rows) if column.is_bad(row))
        extreme = frozenset(
            n for n, place in enumerate(folded.kept) if (place, column.key) in folded.extremes
        )
        if bad and column.is_number:
            cells = [f"{cell} {_MARK if n in bad else ' '}" for n, cell in enumerate(cells)]
        width = max([cell_len(column.title), *map(cell_len, cells)])
        lines.append(_Written(column, tuple(cells), bad, extreme, width))
    return lines


def _rows(sheet: Sheet, folded: Folded, columns: Sequence[_Written]) -> Iterator[RenderableType]:
    """Yield the table, split at the lines that describe folded rows."""
    visible = folded.kept
    starts = [0, *(n for n, place in enumerate(visible) if n and place in folded.lines), len(visible)]
    for start, stop in pairwise(starts):
        if line := folded.lines.get(visible[start]):
            yield Text(f"⋯ {line}", "dim")
        table = _frame(columns, has_header=not start)
        for n in range(start, stop):
            row = sheet.rows[visible[n]]
            style = _DIM_ROW if sheet.is_dim(row) else _BAD_ROW if sheet.is_bad(row) else ""
            table.add_row(*(one.cell(n) for one in columns), style=style)
        yield table


def _frame(columns: Sequence[_Written], has_header: bool) -> Table:
    table = Table(
        box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold", show_header=has_header
    )
    for one in columns:
        column = one.column
        justify: JustifyMethod = "right" if column.is_number else "left"
        overflow: OverflowMethod = "fold" if column.wraps else "ellipsis"
        table.add_column(
            Text(column.title), justify=justify, no_wrap=not column.wraps, overflow=overflow, width=one.width
        )
    return table


def _facts(facts: Sequence[tuple[str, str]]) -> Table:
    grid = Table.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts:
        grid.add_row(Text(label), Text(text))
    return grid


def _hidden(sheet: Sheet, folded: Folded, width: int | None) -> str:
    n = len(sheet.rows)
    others = f", {folded.n_bad} of them marked" if folded.n_bad else ""
    is_deep = sheet.is_tree and any(getattr(row, "depth", 0) > 2 for row in sheet.rows)
    how = (
        f"--all shows them{', --depth 2 only blocks' * is_deep}"
        if width
        else "--all shows them, record.to_rows() has them"
    )
    kept = "; the extremes of every column are shown" if folded.extremes else ""
    return f"{n - len(folded.kept):,} of {counted(n, 'row')} hidden{others}{kept} ({how})"


def _fit(
    written: Sequence[_Written], width: int | None, *, can_cut: bool
) -> tuple[list[_Written], list[_Written]]:
    """Drop columns until the others fit, or with `can_cut` truncate names first; return both, and the widths."""
    if width is None:
        return list(written), []
    columns = [replace(one, width=min(one.width, _SENTENCE)) if one.column.wraps else one for one in written]
    dropped: list[_Written] = []
    least = {"type": _SHORT_TYPE} | ({"name": _SHORT_NAME} if can_cut else {})
    while (spare := width + _GAP - sum(one.width + _GAP for one in columns)) < 0:
        last = max(columns, key=lambda one: one.column.rank)
        long = next((one for one in columns if one.width > least.get(one.column.key, one.width)), None)
        if long is not None and last.column.rank <= _DEAR:
            shorter = max(least[long.column.key], long.width + spare)
            columns[columns.index(long)] = replace(long, width=shorter)
        elif last.column.rank == 0:
            widest = max(columns, key=lambda one: one.width * (not one.column.is_number))
            if widest.column.is_number or widest.width <= _LEAST:
                break
            columns[columns.index(widest)] = replace(widest, width=widest.width - 1)
        else:
            columns.remove(last)
            dropped.append(last)
    for one in sorted(dropped, key=lambda one: one.column.rank):  # a wide one may make room for several
        if one.width + _GAP <= spare:
            dropped.remove(one)
            columns.append(one)
            spare -= one.width + _GAP
    places = {one.column.key: n for n, one in enumerate(written)}
    columns.sort(key=lambda one: places[one.column.key])
    for n, one in enumerate(columns):
        wanted = written[places[one.column.key]].width - one.width
        more = max(0, min(spare, wanted))
        columns[n] = one.given(one.width + more)
        spare -= more
    return columns, dropped
