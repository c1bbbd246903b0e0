"""The page of `stats`."""

from modelscope_cli.records.stats import StatsRecord
from modelscope_cli.report.page.common import anchors, images_section, table_section
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.stats.figures import draw_distributions
from modelscope_cli.report.stats.table import stats_sheet

_TITLES = {"layers": "Layers", "batch-norm": "Batch norm"}


def sections(record: StatsRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the marked rows and every table that has rows."""
    tables = {
        table: stats_sheet(record, table)
        for table, rows in (
            ("layers", record.layers),
            ("batch-norm", record.batch_norm),
        )
        if rows or table == "layers"
    }
    return [
        *images_section(record, embedded, {"distributions": draw_distributions}),
        *(table_section(sheet, anchors(sheet, name), name, _TITLES[name]) for name, sheet in tables.items()),
    ]
