"""How the result of `diff` is shown."""

from modelscope_cli.records.diff import DiffRecord
from modelscope_cli.report.diff.table import EVERY_COLUMN, answer, diff_sheet, verdict
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.view import View


class DiffView(View[DiffRecord]):
    """The table and page of `diff`."""

    sheet = staticmethod(diff_sheet)
    columns = EVERY_COLUMN
    answer = staticmethod(answer)
    verdict = staticmethod(verdict)

    def whole_sheet(self, record: DiffRecord) -> Sheet:
        return diff_sheet(record, show_all=True)
