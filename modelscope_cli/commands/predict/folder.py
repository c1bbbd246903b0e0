"""The folder `predict --out` leaves behind."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.commands.predict.pictures import draw_reliability, draw_worst
from modelscope_cli.commands.predict.table import predict_sheet
from modelscope_cli.commands.predict.truth_table import tables_of
from modelscope_cli.records.predict import PredictRecord
from modelscope_cli.records.truth import TruthReport
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES

if TYPE_CHECKING:
    from torch import Tensor

RELIABILITY, WORST = "reliability.png", "worst.png"


def files_for(truth: TruthReport | None, pictures: "Sequence[Tensor]") -> tuple[str, ...]:
    """Name what `save_report` writes; without a truth the record and its page."""
    if truth is None:
        return RESULT_FILES
    drawn = [RELIABILITY] * (truth.ece is not None) + [WORST] * bool(pictures)
    return (*drawn, *(f"{table}.csv" for table in tables_of(truth)), *RESULT_FILES)


def save_report(record: PredictRecord, stage: Path, pictures: "Sequence[Tensor]") -> None:
    """Write the tables, the pictures, the record and its page.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    if record.truth is not None:
        _save_truth(record, record.truth, stage, pictures)
    save_result(record, stage)


def _save_truth(record: PredictRecord, truth: TruthReport, stage: Path, pictures: "Sequence[Tensor]") -> None:
    if truth.ece is not None:
        save_figure(draw_reliability(record), stage / RELIABILITY)
    if pictures:
        save_figure(draw_worst(record, pictures), stage / WORST)
    for table in tables_of(truth):
        write_text(stage / f"{table}.csv", render_csv(predict_sheet(record, table)))
