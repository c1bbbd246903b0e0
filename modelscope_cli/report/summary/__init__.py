"""How the result of `summary` is shown."""

from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report.summary.page import sections
from modelscope_cli.report.summary.table import answer, summary_columns, summary_sheet
from modelscope_cli.report.view import View


class SummaryView(View[SummaryRecord]):
    """The table and page of `summary`."""

    sheet = staticmethod(summary_sheet)
    columns = summary_columns()
    answer = staticmethod(answer)

    sections = staticmethod(sections)
