"""How the result of `train` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.train import TRAINED_WEIGHTS, TrainRecord
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.train.table import answer, every_column, train_sheet
from modelscope_cli.report.view import Draw, View


class TrainView(View[TrainRecord]):
    """The table, figures and page of `train`."""

    def sheet(self, record: TrainRecord) -> Sheet:
        return train_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: TrainRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[TrainRecord]]:
        from modelscope_cli.report.train.figures import draw

        return {"training": draw}

    def sections(self, record: TrainRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.train.page import sections

        return sections(record, embedded)

    def save_files(self, record: TrainRecord, folder: Path) -> TrainRecord:
        from modelscope_cli.report.train.figures import draw

        figure, table = (
            ("comparison.png", "variants.csv") if record.is_study else ("curves.png", "layers.csv")
        )
        saved = self.write(record, folder, {figure: draw(record)}, {table: train_sheet(record)})
        weights = (TRAINED_WEIGHTS,) if (folder / TRAINED_WEIGHTS).exists() else ()
        return saved.with_changes(files=(*saved.files, *weights))
