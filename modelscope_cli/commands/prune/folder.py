"""The folder `prune` leaves behind."""

from pathlib import Path

from modelscope_cli.commands.prune.pictures import draw_pruning
from modelscope_cli.commands.prune.table import prune_sheet
from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES

PICTURE = "drift.png"
FILES = (PICTURE, "drift.csv", "layers.csv", *RESULT_FILES)


def save_report(record: PruneRecord, stage: Path) -> None:
    """Write `FILES` into a folder.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    write_text(stage / "drift.csv", render_csv(prune_sheet(record, "drift")))
    write_text(stage / "layers.csv", render_csv(prune_sheet(record, "layers")))
    save_figure(draw_pruning(record), stage / PICTURE)
    save_result(record, stage)
