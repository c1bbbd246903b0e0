"""The page of `stats`."""

from dataclasses import replace
from typing import Any

from modelscope_cli.commands.stats.table import stats_sheet
from modelscope_cli.records.stats import ActivationStats, StatsRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import bars
from modelscope_cli.report.page.common import glance
from modelscope_cli.report.page.html import NOTHING, Html, Section, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section

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
    places = {id(row): f"{table}-{n}" for table, sheet in tables.items() for n, row in enumerate(sheet.rows)}

    def anchor(row: Any) -> str:
        return places[id(row)]

    drawn = _correlations(record, embedded)
    return [
        glance(tables["layers"], anchor),
        *(
            Section(f"{table}-section", _TITLES[table], _table(table, tables[table], anchor))
            for table in tables
        ),
        *([Section("pictures", "Correlation of channels", drawn)] if drawn else []),
    ]


def _table(table: str, sheet: Any, anchor: Any) -> Html:
    if table != "layers":
        return sheet_section(sheet, table, sheet.title, anchor=anchor)
    without_blocks = tuple(column for column in sheet.columns if column.key != "histogram")
    return sheet_section(
        replace(sheet, columns=without_blocks),
        table,
        sheet.title,
        anchor=anchor,
        extras=[("histogram", _histogram)],
    )


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
