"""A table for people at a terminal. Columns that do not fit leave whole, the least needed first."""

from rich.cells import cell_len
from rich.console import Group, JustifyMethod, OverflowMethod, RenderableType
from rich.table import Table
from rich.text import Text

from modelscope_cli.report.sheet import Column, Sheet

_GAP = 2  # blanks between two columns
_SENTENCE = 36  # what a column of sentences makes do with


def render_table(sheet: Sheet, width: int | None) -> RenderableType:
    """Return what Rich prints; `width` in characters, None where there is no limit."""
    columns, dropped = _fit(sheet, width)
    table = Table(
        box=None, padding=(0, _GAP, 0, 0), pad_edge=False, header_style="bold", title_justify="left"
    )
    for column in columns:
        justify: JustifyMethod = "right" if column.is_number else "left"
        overflow: OverflowMethod = "fold" if column.wraps else "ellipsis"
        table.add_column(Text(column.title), justify=justify, no_wrap=not column.wraps, overflow=overflow)
    for row in sheet.rows:
        style = "dim" if sheet.is_dim(row) else "yellow" if sheet.is_bad(row) else ""
        table.add_row(*(Text(column.render(row)) for column in columns), style=style)
    parts: list[RenderableType] = [Text(sheet.title, style="bold")]
    if sheet.rows:
        parts += [Text(), table]
    if sheet.facts:
        facts = Table.grid(padding=(0, _GAP, 0, 0))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column(overflow="fold")
        for label, text in sheet.facts:
            facts.add_row(Text(label), Text(text))
        parts += [Text(), facts]
    if dropped:
        keys = ", ".join(column.key for column in dropped)
        parts += [
            Text(),
            Text(f"not shown for lack of width: {keys}  (choose with --columns; --json has all)", "dim"),
        ]
    return Group(*parts)


def _fit(sheet: Sheet, width: int | None) -> tuple[list[Column], list[Column]]:
    columns = list(sheet.shown())
    widths = {
        column.key: max([cell_len(column.title), *(cell_len(column.render(row)) for row in sheet.rows)])
        for column in columns
    }
    widths |= {column.key: min(widths[column.key], _SENTENCE) for column in columns if column.wraps}
    dropped: list[Column] = []
    while width is not None and sum(widths[column.key] + _GAP for column in columns) - _GAP > width:
        column = max(columns, key=lambda column: column.rank)
        if column.rank == 0:
            break
        columns.remove(column)
        dropped.append(column)
    return columns, dropped
