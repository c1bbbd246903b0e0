"""The page of `stats`."""

from dataclasses import replace
from typing import Any

from modelscope_cli.commands.stats.table import stats_sheet
from modelscope_cli.records.stats import ActivationStats, StatsRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import bars
from modelscope_cli.report.page.common import anchors, images_section, table_section
from modelscope_cli.report.page.html import NOTHING, Html, Section, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Sheet

_TITLES = {"layers": "Layers", "batch-norm": "Batch norm", "attention": "Attention", "frames": "Frames"}


def sections(record: StatsRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the marked rows, every table that has rows, and the correlation figures."""
    tables = {
        table: stats_sheet(record, table)
        for table, rows in (
            ("layers", record.layers),
            ("batch-norm", record.batch_norm),
            ("attention", record.attention),
            ("frames", record.frames),
        )
        if rows or table == "layers"
    }
    figures = _correlations(record, embedded)
    return [
        *images_section(record, embedded),
        *([Section("correlations", "Correlation of channels", figures)] if figures else []),
        *(_table(name, sheet) for name, sheet in tables.items()),
    ]


def _table(name: str, sheet: Sheet) -> Section:
    how: dict[str, Any] = {}
    if name == "layers":
        without_blocks = tuple(column for column in sheet.columns if column.key != "histogram")
        sheet, how = replace(sheet, columns=without_blocks), {"extras": [("histogram", _histogram)]}
    return table_section(sheet, anchors(sheet, name), name, _TITLES[name], **how)


def _histogram(row: ActivationStats) -> Html:
    if row.histogram is None or not row.histogram.counts:
        return NOTHING
    low, high = numbers.number(row.histogram.edges[0]), numbers.number(row.histogram.edges[-1])
    return bars(row.histogram.counts, f"histogram from {low} to {high}")


def _correlations(record: StatsRecord, embedded: EmbeddedImages) -> Html:
    rows = [row for row in record.layers if row.correlation is not None and row.correlation.file]
    figures = [
        embedded.figure(
            row.correlation.file,
            f"correlation of the channels of {row.name}, mean magnitude {numbers.number(row.correlation.mean_abs)}",
            row.name,
        )
        for row in rows
        if row.correlation is not None
    ]
    return joined(figures)
