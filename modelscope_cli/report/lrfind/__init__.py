"""How the result of `lrfind` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.train import LrfindRecord
from modelscope_cli.report.lrfind.figures import draw_range_test
from modelscope_cli.report.lrfind.table import COLUMNS, answer, lrfind_sheet
from modelscope_cli.report.view import Draw, View


class LrfindView(View[LrfindRecord]):
    """The table, figures of `lrfind`."""

    columns = COLUMNS
    sheet = staticmethod(lrfind_sheet)
    figures: Mapping[str, Draw[LrfindRecord]] = {"range test": draw_range_test}
    answer = staticmethod(answer)

    def save_files(self, record: LrfindRecord, folder: Path) -> LrfindRecord:
        return self.write(record, folder, {"lr.png": self.figures["range test"](record)}, {})
