"""How the result of `train` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.train import TRAINED_WEIGHTS, TrainRecord
from modelscope_cli.report.train.figures import draw
from modelscope_cli.report.train.page import sections
from modelscope_cli.report.train.table import answer, train_columns, train_sheet
from modelscope_cli.report.view import Draw, View


class TrainView(View[TrainRecord]):
    """The table, figures and page of `train`."""

    sheet = staticmethod(train_sheet)
    columns = (*train_columns(False), *train_columns(True))
    answer = staticmethod(answer)

    figures: Mapping[str, Draw[TrainRecord]] = {"training": draw}
    sections = staticmethod(sections)

    def save_files(self, record: TrainRecord, folder: Path) -> TrainRecord:
        figure, table = (
            ("comparison.png", "variants.csv") if record.is_study else ("curves.png", "layers.csv")
        )
        saved = self.write(record, folder, {figure: draw(record)}, {table: train_sheet(record)})
        weights = (TRAINED_WEIGHTS,) if (folder / TRAINED_WEIGHTS).exists() else ()
        return saved.with_changes(files=(*saved.files, *weights))
