"""The page of `diff`."""

from collections.abc import Sequence

from modelscope_cli.commands.diff.table import diff_sheet
from modelscope_cli.records.diff import Difference, DiffRecord, FigureDifference
from modelscope_cli.report.page.charts import ChartMark, DepthCurves, Line, depth_section, line_chart
from modelscope_cli.report.page.common import table_section
from modelscope_cli.report.page.html import Section, element, joined
from modelscope_cli.report.page.images import EmbeddedImages


def sections(record: DiffRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return whether A and B are the same, their distance along the depth, and every row."""
    sheet = diff_sheet(record, show_all=True)
    places = {id(row): f"row-{n}" for n, row in enumerate(sheet.rows)}
    figure = _figures(record.figures, places) if record.figures is not None else _distance(record, places)
    return [*figure, table_section(sheet, lambda row: places[id(row)])]


def _figures(rows: Sequence[FigureDifference], places: dict[int, str]) -> list[Section]:
    """Return a chart of every number that both results have, A and B over their rows."""
    names = list(dict.fromkeys(row.name for row in rows))
    by_figure = {(row.name, row.figure): row for row in rows}
    anchors = {row.name: places[id(row)] for row in reversed(rows)}
    curves = []
    for figure in dict.fromkeys(row.figure for row in rows if row.figure):
        both = [by_figure.get((name, figure)) for name in names]
        a, b = ([getattr(row, side, None) for row in both] for side in "ab")
        curves.append(DepthCurves(figure.replace("_", " "), a, b))
    return depth_section(curves, names, lambda n: anchors[names[n]])


def _distance(record: DiffRecord, places: dict[int, str]) -> list[Section]:
    """Return a chart of the relative L2 row by row; bit-equal rows are on the lower edge."""
    rows: Sequence[Difference] = record.rows
    above = [row.rel_l2 for row in rows if row.rel_l2]
    if not above or len(rows) < 2:
        return []
    edge = min(above) / 10
    step = range(len(rows))
    lines = [Line("relative L2", step, [None if row.rel_l2 is None else row.rel_l2 or edge for row in rows])]
    if record.tolerance:
        lines.append(Line("tolerance", [0, len(rows) - 1], [record.tolerance] * 2, 1))
    first = next((n for n, row in enumerate(rows) if row.label == record.first_divergence), None)
    marks = [] if first is None else [ChartMark(first, rows[first].label, places[id(rows[first])])]
    title = "Relative difference of B from A"
    words = "From the first row of the table to the last; bit-identical layers are on the lower edge. "
    words += "The label marks the first row out of tolerance."
    chart = line_chart(title, lines, marks, last=len(rows) - 1, labels=[row.label for row in rows])
    return [Section("depth", "By layer", joined([element("p", words, class_="quiet"), chart]))]
