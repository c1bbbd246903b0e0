"""How the result of `diff` is shown."""

from collections.abc import Mapping, Sequence

from modelscope_cli.records.diff import DiffRecord
from modelscope_cli.report.diff.table import answer, diff_sheet, every_column, verdict
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View


class DiffView(View[DiffRecord]):
    """The table, figures and page of `diff`."""

    def sheet(self, record: DiffRecord) -> Sheet:
        return diff_sheet(record)

    def whole_sheet(self, record: DiffRecord) -> Sheet:
        return diff_sheet(record, show_all=True)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: DiffRecord) -> str:
        return answer(record)

    def verdict(self, record: DiffRecord) -> str:
        return verdict(record)

    def figures(self) -> Mapping[str, Draw[DiffRecord]]:
        from modelscope_cli.report.diff.figures import draw_divergence

        return {"divergence": draw_divergence}

    def sections(self, record: DiffRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.diff.page import sections

        return sections(record, embedded)
