"""The page of `diff`."""

import itertools
from collections.abc import Sequence

from modelscope_cli.commands.diff.table import diff_sheet
from modelscope_cli.records.diff import Difference, DiffRecord, first_divergence
from modelscope_cli.report.page.charts import ChartMark, Line, line_chart
from modelscope_cli.report.page.common import table_section
from modelscope_cli.report.page.html import Section, element, joined
from modelscope_cli.report.page.images import EmbeddedImages


def sections(record: DiffRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the difference of A and B along the depth, and every row."""
    sheet = diff_sheet(record, show_all=True)
    places = {id(row): f"row-{n}" for n, row in enumerate(sheet.rows)}
    return [*_distance(record, places), table_section(sheet, lambda row: places[id(row)])]


def _distance(record: DiffRecord, places: dict[int, str]) -> list[Section]:
    """Return a chart of the relative difference row by row; bit-equal rows are on the lower edge."""
    rows: Sequence[Difference] = record.rows
    if record.figures is not None:
        by_name = itertools.groupby(record.figures, key=lambda row: row.name)
        rows = [max(numbers, key=lambda row: row.rel_l2 or 0.0) for _, numbers in by_name]
    above = [row.rel_l2 for row in rows if row.rel_l2]
    if not above or len(rows) < 2:
        return []
    edge = min(above) / 10
    step = range(len(rows))
    name = "relative L2" if record.figures is None else "largest relative difference"
    lines = [Line(name, step, [None if row.rel_l2 is None else row.rel_l2 or edge for row in rows])]
    if record.tolerance:
        lines.append(Line("tolerance", [0, len(rows) - 1], [record.tolerance] * 2, 1))
    label = first_divergence(tuple(rows))
    first = next((n for n, row in enumerate(rows) if row.label == label), None)
    marks = [] if first is None else [ChartMark(first, rows[first].label, places[id(rows[first])])]
    title = "Relative difference of B from A"
    words = "From the first row of the table to the last; bit-identical layers are on the lower edge. "
    words += "The label marks the first row out of tolerance."
    chart = line_chart(title, lines, marks, last=len(rows) - 1, labels=[row.label for row in rows])
    return [Section("depth", "By layer", joined([element("p", words, class_="quiet"), chart]))]
