"""How the result of `lrfind` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.train import LrfindRecord
from modelscope_cli.report.lrfind.table import COLUMNS, answer, lrfind_sheet
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View


class LrfindView(View[LrfindRecord]):
    """The table, figures of `lrfind`."""

    def sheet(self, record: LrfindRecord) -> Sheet:
        return lrfind_sheet(record)

    def columns(self) -> Sequence[Column]:
        return COLUMNS

    def answer(self, record: LrfindRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[LrfindRecord]]:
        from modelscope_cli.report.lrfind.figures import draw_range_test

        return {"range test": draw_range_test}

    def save_files(self, record: LrfindRecord, folder: Path) -> LrfindRecord:
        from modelscope_cli.report.lrfind.figures import draw_range_test

        return self.write(record, folder, {"lr.png": draw_range_test(record)}, {})
