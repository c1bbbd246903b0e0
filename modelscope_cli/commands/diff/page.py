"""The page of `diff`."""

import math
from contextlib import suppress
from functools import partial

from modelscope_cli.commands.diff.figures import draw
from modelscope_cli.commands.diff.table import diff_sheet
from modelscope_cli.errors import UsageError
from modelscope_cli.records.diff import DiffRecord
from modelscope_cli.report.page.common import anchors, figure_of, table_section
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages


def sections(record: DiffRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the figure of the rows in order, which is wide and not tall as the table names them, and every row."""
    sheet = diff_sheet(record, show_all=True)
    figures = []
    file = "divergence.png" if record.figures is None else "values.png"
    if record.figures is not None or any(row.rel_l2 for row in record.rows):
        with suppress(UsageError):  # no number differs
            figure = figure_of(record, embedded, file, partial(draw, least_down=math.inf))
            figures.append(Section("figures", "By layer", figure))
    return [*figures, table_section(sheet, anchors(sheet))]
