"""What `lrfind` leaves behind: the report and the curve."""

from pathlib import Path

from modelscope_cli.commands.lrfind.pictures import draw_range_test
from modelscope_cli.records.lrfind import LrfindRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.json import DOCUMENT, save_document

FILES = ("lr.png", DOCUMENT)


def save_report(record: LrfindRecord, stage: Path) -> None:
    """Write the picture and the report into a folder.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    save_figure(draw_range_test(record), stage / "lr.png")
    save_document(record, stage)
