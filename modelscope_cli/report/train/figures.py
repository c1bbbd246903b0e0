"""The figure of `train`."""

from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.train import TrainRecord
from modelscope_cli.report import training_panels
from modelscope_cli.report.train.table import settings_of
from modelscope_cli.report.training_figures import draw_training


def draw_curves(record: TrainRecord) -> Any:
    """Draw one training: its layers and losses, and maps of zeros, dead channels and weight updates."""
    training = record.training
    zeros = [
        row for row in training.layers if any((share or 0) > 0.005 for share in row.series.zero_fraction)
    ]
    rows: dict[str, Sequence[training_panels.Row]] = {
        "zero_fraction": zeros,
        "dead_fraction": training_panels.rectifiers(training.layers),
        "update_ratio": training_panels.matrices(training.parameters),
    }
    maps = [training_panels.heat_map(every, key) for key, every in rows.items() if every]
    title = f"{record.run.model.short_name}: {settings_of(training)}"
    return draw_training(training, title, maps, "gap: zero, or not finite")
