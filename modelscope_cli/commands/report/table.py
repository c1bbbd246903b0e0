"""The columns of `report`."""

from modelscope_cli.records.listings import Page, ReportRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Sheet, choose_columns, field_columns

COLUMNS = (
    *field_columns(Page, "file"),
    *field_columns(Page, "bytes", text=lambda row: numbers.memory(row.bytes)),
    *field_columns(Page, "command model verdict"),
)


def report_sheet(record: ReportRecord, columns: str | None = None) -> Sheet:
    """Return the written pages."""
    title = counted(len(record.pages), "page")
    return Sheet(title=title, columns=choose_columns(COLUMNS, columns), rows=record.pages)
