"""Tab- and comma-separated values: whole names, bare numbers, one header line."""

import csv
import io
import math
from collections.abc import Iterator

from modelscope_cli.plain_text import plain, spreadsheet_cell
from modelscope_cli.report.sheet import Sheet, Value


def render_tsv(sheet: Sheet) -> str:
    """Return the sheet with tabs between the cells; tabs and line ends inside a cell become spaces."""
    lines = [[column.key for column in sheet.columns], *_cells(sheet)]
    return "".join("\t".join(" ".join(cell.split()) for cell in line) + "\n" for line in lines)


def render_csv(sheet: Sheet) -> str:
    """Return the sheet as RFC 4180 comma-separated values, in which no name is a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.key for column in sheet.columns)
    for row in sheet.rows:
        values = [column.value(row) for column in sheet.columns]
        writer.writerow(spreadsheet_cell(_cell(v)) if isinstance(v, str) else _cell(v) for v in values)
    return text.getvalue()


def _cells(sheet: Sheet) -> Iterator[list[str]]:
    for row in sheet.rows:
        yield [_cell(column.value(row)) for column in sheet.columns]


def _cell(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else plain(str(value))
