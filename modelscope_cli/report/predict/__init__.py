"""How the result of `predict` is shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelscope_cli.records.predict import DoctorRecord, PredictRecord
from modelscope_cli.report.page.html import Section
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.predict.table import answer, every_column, first_table, predict_sheet
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.view import Draw, View


class PredictView(View[PredictRecord | DoctorRecord]):
    """The table, figures and page of `predict`."""

    def sheet(self, record: PredictRecord | DoctorRecord) -> Sheet:
        return predict_sheet(record, first_table(record))

    def whole_sheet(self, record: PredictRecord | DoctorRecord) -> Sheet:
        return predict_sheet(record)

    def columns(self) -> Sequence[Column]:
        return every_column()

    def answer(self, record: PredictRecord | DoctorRecord) -> str:
        return answer(record)

    def figures(self) -> Mapping[str, Draw[PredictRecord | DoctorRecord]]:
        from modelscope_cli.report.predict.figures import draw_reliability

        return {"reliability": draw_reliability}

    def save_files(self, record: PredictRecord | DoctorRecord, folder: Path) -> PredictRecord | DoctorRecord:
        from modelscope_cli.report.predict.figures import save_files

        return save_files(record, folder) if isinstance(record, PredictRecord) else record

    def sections(self, record: PredictRecord | DoctorRecord, embedded: EmbeddedImages) -> list[Section]:
        from modelscope_cli.report.predict.page import sections

        return sections(record, embedded)
