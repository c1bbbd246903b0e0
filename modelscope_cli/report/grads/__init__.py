"""How the result of `grads` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.grads import GradsRecord
from modelscope_cli.report.grads.figures import draw_gradient_flow
from modelscope_cli.report.grads.table import answer, grads_columns, grads_sheet
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.view import Draw, View


class GradsView(View[GradsRecord]):
    """The table, figures and page of `grads`."""

    sheet = staticmethod(grads_sheet)
    columns = (*grads_columns("parameters"), *grads_columns("activations"))
    figures: Mapping[str, Draw[GradsRecord]] = {"flow": draw_gradient_flow}
    answer = staticmethod(answer)

    def headline(self, record: GradsRecord) -> str:
        """Return that the output explodes, where it does: the loss is saturated by that, or the gradients are."""
        large = (one.message for one in record.run.warnings if one.code == "large_scores")
        return next(large, super().headline(record))

    def tables(self, record: GradsRecord) -> Mapping[str, tuple[str, Sheet]]:
        titles = {"parameters": "Parameters", "activations": "Activations"}
        return {name: (title, grads_sheet(record, name)) for name, title in titles.items()}

    def save_files(self, record: GradsRecord, folder: Path) -> GradsRecord:
        figures = {"gradient_flow.png": self.figures["flow"](record)}
        tables = {f"{table}.csv": grads_sheet(record, table) for table in ("parameters", "activations")}
        saved = self.write(record, folder, figures, tables)
        *drawn, document, page = saved.files
        return saved.with_changes(files=(document, page, *drawn))  # the order that its documents have
