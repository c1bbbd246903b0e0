"""How the result of `ablate` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.ablate import AblateRecord
from modelscope_cli.report.ablate.figures import draw_ablation
from modelscope_cli.report.ablate.table import ablate_columns, ablate_sheet, answer
from modelscope_cli.report.view import Draw, View


class AblateView(View[AblateRecord]):
    """The table, figures of `ablate`."""

    sheet = staticmethod(ablate_sheet)
    columns = ablate_columns()
    figures: Mapping[str, Draw[AblateRecord]] = {"ablation": draw_ablation}
    answer = staticmethod(answer)

    def save_files(self, record: AblateRecord, folder: Path) -> AblateRecord:
        figures = {self.shown_below: self.figures["ablation"](record)}
        return self.write(record, folder, figures, {"ablation.csv": self.sheet(record)})

    shown_below = "ablation.png"
