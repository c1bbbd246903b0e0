"""The pictures of a training: one of its own, or several variants over one another."""

from typing import Any

from modelscope_cli.commands.train.comparison import draw_comparison
from modelscope_cli.commands.train.curves import draw_curves
from modelscope_cli.records.train import TrainRecord


def draw_training(record: TrainRecord) -> Any:
    """Draw one training, or several over one another."""
    return draw_comparison(record) if record.is_study else draw_curves(record)


# What `record.plot()` draws; the first where no other is asked for.
PICTURES = {"training": draw_training}
