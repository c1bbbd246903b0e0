"""How the result of `summary` is shown."""

from collections.abc import Mapping, Sequence

from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.summary.table import answer, summary_columns, summary_sheet
from modelscope_cli.report.view import Draw, View


class SummaryView(View[SummaryRecord]):
    """The table, figures and page of `summary`."""

    def sheet(self, record: SummaryRecord) -> Sheet:
        return summary_sheet(record)

    def columns(self) -> Sequence[Column]:
        return summary_columns()

    def answer(self, record: SummaryRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[SummaryRecord]]:
        from modelscope_cli.report.summary.figures import draw_memory

        return {"memory": draw_memory}

    def sections(self, record: SummaryRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.summary.page import sections

        return sections(record, embedded)
