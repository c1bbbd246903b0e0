"""How the result of `check` is shown."""

from modelscope_cli.records.check import CheckRecord
from modelscope_cli.report.check.page import sections
from modelscope_cli.report.check.table import COLUMNS, answer, check_sheet, verdict
from modelscope_cli.report.view import View


class CheckView(View[CheckRecord]):
    """The table and page of `check`."""

    columns = COLUMNS
    sheet = staticmethod(check_sheet)
    answer = contents = staticmethod(answer)
    verdict = staticmethod(verdict)
    sections = staticmethod(sections)
