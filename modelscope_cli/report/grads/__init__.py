"""How the result of `grads` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.report.grads.table import answer, every_column, grads_sheet
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

    def tables(self, record: GradsRecord) -> Mapping[str, tuple[str, Sheet]]:
        titles = {"parameters": "Parameters", "activations": "Activations"}
        titles |= {"batch-norm": "Batch norm"} if record.batch_norm else {}
        return {name: (title, grads_sheet(record, name)) for name, title in titles.items()}

    def save_files(self, record: GradsRecord, folder: Path) -> GradsRecord:
        from modelscope_cli.report.grads.figures import draw_gradient_flow

        tables = {f"{table}.csv": grads_sheet(record, table) for table in ("parameters", "activations")}
        saved = self.write(record, folder, {"gradient_flow.png": draw_gradient_flow(record)}, tables)
        *drawn, document, page = saved.files
        return saved.with_changes(files=(document, page, *drawn))  # the order that its documents have
