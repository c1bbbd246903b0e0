"""The folder `attack` leaves behind, beside the adversarial picture itself."""

from pathlib import Path

from torch import Tensor

from modelscope_cli.commands.attack.names import (
    ADVERSARIAL,
    BEFORE,
    COMPARISON,
    FILES,
    LOSS,
    PERTURBATION,
)
from modelscope_cli.commands.attack.pictures import (
    DPI,
    draw_losses,
    save_comparison,
    save_levels,
    save_perturbation,
)
from modelscope_cli.records.attack import AttackRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.page.results import save_result

__all__ = ["ADVERSARIAL", "FILES", "save_report"]


def save_report(record: AttackRecord, before: Tensor, after: Tensor, stage: Path) -> None:
    """Write all of `FILES` but `ADVERSARIAL`. `before`, `after`: `(C, H, W)` uint8.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    save_levels(before, stage / BEFORE)
    save_perturbation(record, before, after, stage / PERTURBATION)
    save_comparison(record, before, after, stage / COMPARISON)
    save_figure(draw_losses(record), stage / LOSS, DPI)
    save_result(record, stage)
