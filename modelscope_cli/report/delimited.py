"""Tab- and comma-separated values: whole names, bare numbers, one header line."""

import csv
import io
import math

from modelscope_cli.report.sheet import Sheet, Value


def render_tsv(sheet: Sheet) -> str:
    """Return the sheet with tabs between the cells; tabs and line ends inside a cell become spaces."""
    return _render(sheet, "\t")


def render_csv(sheet: Sheet) -> str:
    """Return the sheet as RFC 4180 comma-separated values."""
    return _render(sheet, ",")


def _render(sheet: Sheet, delimiter: str) -> str:
    text = io.StringIO()
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
    writer = csv.writer(
        text,
        delimiter=delimiter,
        lineterminator="\n",
        quoting=quoting,
        quotechar='"' if quoting == csv.QUOTE_MINIMAL else None,
    )
    writer.writerow(column.key for column in sheet.columns)
    for row in sheet.rows:
        cells = [_cell(column.value(row)) for column in sheet.columns]
        writer.writerow([" ".join(cell.split("\t")) for cell in cells] if delimiter == "\t" else cells)
    return text.getvalue()


def _cell(value: Value) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    return " ".join(str(value).splitlines()) if isinstance(value, str) else str(value)
