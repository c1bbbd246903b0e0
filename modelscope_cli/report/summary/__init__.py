"""How the result of `summary` is shown."""

from collections.abc import Mapping

from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report.summary.figures import draw_memory
from modelscope_cli.report.summary.page import sections
from modelscope_cli.report.summary.table import answer, summary_columns, summary_sheet
from modelscope_cli.report.view import Draw, View


class SummaryView(View[SummaryRecord]):
    """The table, figures and page of `summary`."""

    sheet = staticmethod(summary_sheet)
    columns = summary_columns()
    figures: Mapping[str, Draw[SummaryRecord]] = {"memory": draw_memory}
    answer = staticmethod(answer)

    sections = staticmethod(sections)
