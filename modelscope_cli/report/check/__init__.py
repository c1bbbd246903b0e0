"""How the result of `check` is shown."""

from collections.abc import Sequence

from modelscope_cli.records.check import CheckRecord
from modelscope_cli.report.check.table import COLUMNS, answer, check_sheet, verdict
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import View


class CheckView(View[CheckRecord]):
    """The table and page of `check`."""

    def sheet(self, record: CheckRecord) -> Sheet:
        return check_sheet(record)

    def columns(self) -> Sequence[Column]:
        return COLUMNS

    def answer(self, record: CheckRecord) -> str:
        return answer(record)

    def verdict(self, record: CheckRecord) -> str:
        return verdict(record)

    def sections(self, record: CheckRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.check.page import sections

        return sections(record, embedded)
