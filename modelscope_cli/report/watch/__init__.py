"""How the result of `watch` is shown."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View
from modelscope_cli.report.watch.table import answer, every_column, watch_sheet


class WatchView(View[WatchRecord]):
    """The table, figures and page of `watch`."""

    def sheet(self, record: WatchRecord) -> Sheet:
        return watch_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: WatchRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[WatchRecord]]:
        from modelscope_cli.report.watch.figures import FIGURES

        return FIGURES

    def sections(self, record: WatchRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.watch.page import sections

        return sections(record, embedded)

    def save_files(self, record: WatchRecord, folder: Path) -> WatchRecord:
        from modelscope_cli.report.watch.figures import write_run

        write_run(record, folder, lambda _: nullcontext(), has_figures=True)
        return record

    shown_below = "activations.png"
