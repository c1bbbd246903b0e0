"""The folder `prune` leaves behind."""

from pathlib import Path

from modelscope_cli.commands.prune.pictures import draw_pruning
from modelscope_cli.commands.prune.table import prune_sheet
from modelscope_cli.records.prune import PruneRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.json import render_json
from modelscope_cli.report.page.results import save_folder_page
from modelscope_cli.report.reading import PAGE

PICTURE = "drift.png"
FILES = (PICTURE, "drift.csv", "layers.csv", "report.json", PAGE)


def save_report(record: PruneRecord, stage: Path) -> None:
    """Write `FILES` into a folder.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    write_text(stage / "report.json", render_json(record.to_dict()))
    write_text(stage / "drift.csv", render_csv(prune_sheet(record, "drift")))
    write_text(stage / "layers.csv", render_csv(prune_sheet(record, "layers")))
    save_figure(draw_pruning(record), stage / PICTURE)
    save_folder_page(record, stage)
