"""Tab- and comma-separated values: whole names, no formulas, bare numbers, one header line."""

import csv
import io
import math
from collections.abc import Iterator

from modelscope_cli.plain_text import plain, spreadsheet_cell
from modelscope_cli.report.sheet import Sheet, Value


def render_tsv(sheet: Sheet) -> str:
    """Return the sheet with tabs between the cells; tabs and line ends inside a cell become spaces."""
    lines = [[column.key for column in sheet.columns], *_cells(sheet)]
    return "".join("\t".join(line) + "\n" for line in lines)


def render_csv(sheet: Sheet) -> str:
    """Return the sheet as RFC 4180 comma-separated values."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column.key for column in sheet.columns)
    writer.writerows(_cells(sheet, is_whole=True))
    return text.getvalue()


def _cells(sheet: Sheet, *, is_whole: bool = False) -> Iterator[list[str]]:
    """Yield the cells of each row, of which no text is a formula; `is_whole`: with its spaces as they are."""
    for row in sheet.rows:
        cells = []
        for column in sheet.columns:
            value = column.value(row)
            cell = _cell(value) if is_whole else " ".join(_cell(value).split())
            cells.append(spreadsheet_cell(cell) if isinstance(value, str) else cell)
        yield cells


def _cell(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else plain(str(value))
