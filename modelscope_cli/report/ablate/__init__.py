"""How the result of `ablate` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.ablate import AblateRecord
from modelscope_cli.report.ablate.table import ablate_columns, ablate_sheet, answer
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View


class AblateView(View[AblateRecord]):
    """The table, figures of `ablate`."""

    def sheet(self, record: AblateRecord) -> Sheet:
        return ablate_sheet(record)

    def columns(self) -> Sequence[Column]:
        return ablate_columns()

    def answer(self, record: AblateRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[AblateRecord]]:
        from modelscope_cli.report.ablate.figures import draw_ablation

        return {"ablation": draw_ablation}

    def save_files(self, record: AblateRecord, folder: Path) -> AblateRecord:
        from modelscope_cli.report.ablate.figures import draw_ablation

        figures = {self.shown_below: draw_ablation(record)}
        return self.write(record, folder, figures, {"ablation.csv": self.sheet(record)})

    shown_below = "ablation.png"
