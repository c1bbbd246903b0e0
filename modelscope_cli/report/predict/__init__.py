"""How the result of `predict` is shown."""

from collections.abc import Mapping
from pathlib import Path

from modelscope_cli.records.naming import counted
from modelscope_cli.records.predict import DoctorRecord, PredictRecord
from modelscope_cli.report.predict.figures import draw_reliability, save_files
from modelscope_cli.report.predict.page import sections
from modelscope_cli.report.predict.table import RANDOM, answer, every_column, first_table, predict_sheet
from modelscope_cli.report.sheet import Sheet
from modelscope_cli.report.view import Draw, View


class PredictView(View[PredictRecord | DoctorRecord]):
    """The table, figures and page of `predict`."""

    def sheet(self, record: PredictRecord | DoctorRecord) -> Sheet:
        return predict_sheet(record, first_table(record))

    whole_sheet = staticmethod(predict_sheet)
    columns = every_column()
    figures: Mapping[str, Draw[PredictRecord | DoctorRecord]] = {"reliability": draw_reliability}

    def contents(self, record: PredictRecord | DoctorRecord) -> str:
        if not isinstance(record, PredictRecord) or not record.predictions:
            return super().contents(record)
        images = counted(len({one.image for one in record.predictions}), "image")
        most = max(len(one.top) for one in record.predictions)
        return f"{images}, top {most}" if most else images

    answer = staticmethod(answer)
    sections = staticmethod(sections)

    def headline(self, record: PredictRecord | DoctorRecord) -> str:
        is_random = record.run.model.weights.resolved == "random"
        return f"The weights are {RANDOM}" if is_random else super().headline(record)

    def save_files(self, record: PredictRecord | DoctorRecord, folder: Path) -> PredictRecord | DoctorRecord:
        return save_files(record, folder) if isinstance(record, PredictRecord) else record
