"""The page of `grads`."""

from typing import Any

from modelscope_cli.commands.grads.table import grads_sheet
from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.report.page.common import glance, images_section
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section

_TITLES = {"parameters": "Parameters", "activations": "Activations", "batch-norm": "Batch norm"}


def sections(record: GradsRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the findings, the figure, and every table that has rows."""
    tables = {
        table: grads_sheet(record, table) for table in _TITLES if table != "batch-norm" or record.batch_norm
    }
    places = {id(row): f"{table}-{n}" for table, sheet in tables.items() for n, row in enumerate(sheet.rows)}

    def anchor(row: Any) -> str:
        return places[id(row)]

    return [
        glance(tables["parameters"], anchor),
        *images_section(record, embedded),
        *(
            Section(
                f"{table}-section", _TITLES[table], sheet_section(sheet, table, sheet.title, anchor=anchor)
            )
            for table, sheet in tables.items()
        ),
    ]
