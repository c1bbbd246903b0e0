"""What `train` leaves behind: the report's folder and the trained weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.commands.train.pictures import draw_training
from modelscope_cli.commands.train.table import train_sheet
from modelscope_cli.records.train import TrainRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES
from modelscope_cli.report.tensor_file import write_tensors

WEIGHTS = "model.safetensors"
SINGLE_FILES = ("curves.png", "layers.csv", *RESULT_FILES, WEIGHTS)
STUDY_FILES = ("comparison.png", "variants.csv", *RESULT_FILES)


def files_of(record: TrainRecord) -> tuple[str, ...]:
    """Return what is always there."""
    return STUDY_FILES if record.is_study else SINGLE_FILES


def save_report(record: TrainRecord, stage: Path) -> None:
    """Write the tables, the picture and the page into a folder; the weights are saved by themselves.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    picture, table = files_of(record)[:2]
    write_text(stage / table, render_csv(train_sheet(record)))
    save_figure(draw_training(record), stage / picture)
    save_result(record, stage)


def save_weights(state: dict[str, Any], path: Path, classes: Sequence[str]) -> None:
    """Write a state dict as safetensors, whole or not at all; its header names the classes."""
    write_tensors(path, state, categories=list(classes))
