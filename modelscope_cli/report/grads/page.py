"""The page of `grads`."""

from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.report.grads.figures import draw_gradient_flow
from modelscope_cli.report.grads.table import grads_sheet
from modelscope_cli.report.page.common import anchors, images_section, table_section
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages

_TITLES = {"parameters": "Parameters", "activations": "Activations", "batch-norm": "Batch norm"}


def sections(record: GradsRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the findings, the figure, and every table that has rows."""
    tables = {
        table: grads_sheet(record, table) for table in _TITLES if table != "batch-norm" or record.batch_norm
    }
    return [
        *images_section(record, embedded, {"flow": draw_gradient_flow}),
        *(table_section(sheet, anchors(sheet, name), name, _TITLES[name]) for name, sheet in tables.items()),
    ]
