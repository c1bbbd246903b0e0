"""How the result of `diff` is shown."""

from collections.abc import Mapping

from modelscope_cli.records.diff import DiffRecord
from modelscope_cli.report.diff.figures import draw_divergence
from modelscope_cli.report.diff.table import EVERY_COLUMN, answer, diff_sheet, verdict
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.view import Draw, View


class DiffView(View[DiffRecord]):
    """The table, figures and page of `diff`."""

    sheet = staticmethod(diff_sheet)
    columns = EVERY_COLUMN
    figures: Mapping[str, Draw[DiffRecord]] = {"divergence": draw_divergence}
    answer = staticmethod(answer)
    verdict = staticmethod(verdict)

    def whole_sheet(self, record: DiffRecord) -> Sheet:
        return diff_sheet(record, show_all=True)
