"""How the result of `train` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.train import TRAINED_WEIGHTS, TrainRecord
from modelscope_cli.report.train.figures import draw_curves
from modelscope_cli.report.train.page import sections
from modelscope_cli.report.train.table import LAYER_COLUMNS, answer, train_sheet
from modelscope_cli.report.view import Draw, View


class TrainView(View[TrainRecord]):
    """The table, figures and page of `train`."""

    sheet = staticmethod(train_sheet)
    columns = LAYER_COLUMNS
    answer = staticmethod(answer)

    figures: Mapping[str, Draw[TrainRecord]] = {"training": draw_curves}
    sections = staticmethod(sections)

    def save_files(self, record: TrainRecord, folder: Path) -> TrainRecord:
        figures, tables = {"curves.png": draw_curves(record)}, {"layers.csv": train_sheet(record)}
        saved = self.write(record, folder, figures, tables)
        weights = (TRAINED_WEIGHTS,) if (folder / TRAINED_WEIGHTS).exists() else ()
        return saved.with_changes(files=(*saved.files, *weights))
