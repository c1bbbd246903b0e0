"""The page of `stats`."""

from modelscope_cli.commands.stats.table import stats_sheet
from modelscope_cli.records.stats import StatsRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.page.common import anchors, images_section, table_section
from modelscope_cli.report.page.html import Html, Section, joined
from modelscope_cli.report.page.images import EmbeddedImages

_TITLES = {"layers": "Layers", "batch-norm": "Batch norm", "attention": "Attention"}


def sections(record: StatsRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the marked rows, every table that has rows, and the correlation figures."""
    tables = {
        table: stats_sheet(record, table)
        for table, rows in (
            ("layers", record.layers),
            ("batch-norm", record.batch_norm),
            ("attention", record.attention),
        )
        if rows or table == "layers"
    }
    figures = _correlations(record, embedded)
    return [
        *images_section(record, embedded),
        *([Section("correlations", "Correlation of channels", figures)] if figures else []),
        *(table_section(sheet, anchors(sheet, name), name, _TITLES[name]) for name, sheet in tables.items()),
    ]


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
