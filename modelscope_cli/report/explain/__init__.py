"""How the result of `explain` is shown."""

from collections.abc import Sequence

from modelscope_cli.records.explain import ExplainRecord
from modelscope_cli.report.explain.table import answer, explain_columns, explain_sheet
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import View


class ExplainView(View[ExplainRecord]):
    """The table of `explain`."""

    def sheet(self, record: ExplainRecord) -> Sheet:
        return explain_sheet(record)

    def columns(self) -> Sequence[Column]:
        return explain_columns()

    def answer(self, record: ExplainRecord) -> str:
        return answer(record)
