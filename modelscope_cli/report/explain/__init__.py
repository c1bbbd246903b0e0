"""How the result of `explain` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.explain import MOST_SHOWN, ExplainedImage, ExplainRecord
from modelscope_cli.report.explain.table import answer, explain_columns, explain_sheet
from modelscope_cli.report.view import View


class ExplainView(View[ExplainRecord]):
    """The table and figure of `explain`."""

    sheet = staticmethod(explain_sheet)
    columns = explain_columns()
    answer = staticmethod(answer)

    def save_files(self, record: ExplainRecord, folder: Path) -> ExplainRecord:
        figure = self._drawn(record)
        figures = {self.shown_below: figure} if figure is not None else {}
        return self.write(record, folder, figures, {"explanation.csv": self.sheet(record)})

    shown_below = "explanation.png"

    def preview(self, record: ExplainRecord) -> bytes | None:
        from modelscope_cli.report.canvas import to_png

        figure = self._drawn(record)
        return to_png(figure) if figure is not None else None

    def tensors(self, record: ExplainRecord) -> Mapping[str, Any] | None:
        """Return the cells of the maps by method, of several images as `NUMBER.METHOD`."""
        images: Sequence[ExplainedImage] = self.kept(record) or ()
        if not images:
            return None
        if record.images > len(images):
            message = f"only the maps of the first {MOST_SHOWN} images are kept, not of {record.images:,}"
            raise UsageError(message, "explain fewer images at a time")
        return {
            method if len(images) == 1 else f"{n}.{method}": one.cells
            for n, image in enumerate(images)
            for method, one in image.maps.items()
        }

    def _drawn(self, record: ExplainRecord) -> Any:
        from modelscope_cli.report.explain.figures import draw_explanations

        return draw_explanations(record, self.kept(record) or ())
