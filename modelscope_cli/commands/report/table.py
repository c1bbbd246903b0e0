"""The columns of `report`."""

from modelscope_cli.records.listings import Page, ReportRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, choose_columns


def _size(row: Page) -> str:
    return numbers.memory(row.bytes)


COLUMNS = (
    Column("file", "page", lambda r: r.file, is_number=False, rank=0),
    Column("bytes", "size", lambda r: r.bytes, _size, rank=1),
    Column("command", "command", lambda r: r.command, is_number=False, rank=2),
    Column("model", "model", lambda r: r.model, is_number=False, rank=3),
    Column("verdict", "verdict", lambda r: r.verdict, is_number=False, rank=0, wraps=True),
)


def report_sheet(record: ReportRecord, columns: str | None = None) -> Sheet:
    """List the pages that were written."""
    title = counted(len(record.pages), "page")
    return Sheet(title=title, columns=choose_columns(COLUMNS, columns), rows=record.pages)
