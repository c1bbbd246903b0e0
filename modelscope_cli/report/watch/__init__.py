"""How the result of `watch` is shown."""

from contextlib import nullcontext
from pathlib import Path

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.view import View
from modelscope_cli.report.watch.figures import FIGURES, write_run
from modelscope_cli.report.watch.page import sections
from modelscope_cli.report.watch.table import answer, every_column, watch_sheet


class WatchView(View[WatchRecord]):
    """The table, figures and page of `watch`."""

    sheet = staticmethod(watch_sheet)
    columns = every_column()
    answer = staticmethod(answer)

    figures = FIGURES
    sections = staticmethod(sections)

    def save_files(self, record: WatchRecord, folder: Path) -> WatchRecord:
        write_run(record, folder, lambda _: nullcontext(), has_figures=True)
        return record

    shown_below = "activations.png"
