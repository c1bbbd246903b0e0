"""The page of `diff`."""

from modelscope_cli.records.diff import DiffRecord
from modelscope_cli.report.diff.figures import draw_divergence
from modelscope_cli.report.diff.table import diff_sheet
from modelscope_cli.report.page.common import anchors, figure_of, table_section
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages


def sections(record: DiffRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the figure of the rows in order, if any differs, and every row."""
    sheet = diff_sheet(record, show_all=True)
    figures = []
    if any(row.rel_l2 for row in record.rows):
        figure = figure_of(record, embedded, "divergence.png", draw_divergence)
        figures.append(Section("depth", "By layer", figure))
    return [*figures, table_section(sheet, anchors(sheet))]
