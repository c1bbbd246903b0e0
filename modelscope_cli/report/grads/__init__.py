"""How the result of `grads` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.report.grads.table import answer, every_column, grads_sheet
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View


class GradsView(View[GradsRecord]):
    """The table, figures and page of `grads`."""

    def sheet(self, record: GradsRecord) -> Sheet:
        return grads_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: GradsRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[GradsRecord]]:
        from modelscope_cli.report.grads.figures import draw_gradient_flow

        return {"flow": draw_gradient_flow}

    def sections(self, record: GradsRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.grads.page import sections

        return sections(record, embedded)

    def save_files(self, record: GradsRecord, folder: Path) -> GradsRecord:
        from modelscope_cli.report.files import write_files
        from modelscope_cli.report.grads.figures import draw_gradient_flow

        tables = {f"{table}.csv": grads_sheet(record, table) for table in ("parameters", "activations")}
        saved = write_files(record, folder, {"gradient_flow.png": draw_gradient_flow(record)}, tables)
        *drawn, document, page = saved.files
        return saved.with_changes(files=(document, page, *drawn))  # the order that its documents have
