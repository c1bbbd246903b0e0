"""How the result of `attack` is shown."""

from collections.abc import Sequence
from pathlib import Path

from modelscope_cli.records.attack import AttackRecord, KeptImages
from modelscope_cli.report.attack.table import COLUMNS, COMPARISON, answer, attack_sheet
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import View


class AttackView(View[AttackRecord]):
    """The table, images and page of `attack`."""

    def sheet(self, record: AttackRecord) -> Sheet:
        return attack_sheet(record)

    def columns(self) -> Sequence[Column]:
        return COLUMNS

    def answer(self, record: AttackRecord) -> str:
        return answer(record)

    def sections(self, record: AttackRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.attack.page import sections

        return sections(record, embedded)

    def save_files(self, record: AttackRecord, folder: Path) -> AttackRecord:
        from modelscope_cli.report.attack.figures import save_images

        return save_images(record, self.kept(record), folder)

    shown_below = COMPARISON

    def preview(self, record: AttackRecord) -> bytes | None:
        from modelscope_cli.report.attack.figures import DPI, draw_comparison
        from modelscope_cli.report.canvas import to_png

        kept: KeptImages | None = self.kept(record)
        return to_png(draw_comparison(record, kept.before, kept.after), DPI) if kept is not None else None
