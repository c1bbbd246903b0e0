"""The page of `summary`."""

from modelscope_cli.commands.summary.graph import graph_section
from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.results import sheet_sections


def sections(record: SummaryRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the graph if it was recorded, and the table with the totals."""
    graph = [graph_section(record)] if record.flow is not None else []
    return [*graph, *sheet_sections(record, embedded)]
