"""What `lrfind` leaves behind: the report, the curve and the page of both."""

from pathlib import Path

from modelscope_cli.commands.lrfind.pictures import draw_range_test
from modelscope_cli.records.lrfind import LrfindRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.json import render_json
from modelscope_cli.report.page.results import save_folder_page
from modelscope_cli.report.reading import PAGE

FILES = ("lr.png", "report.json", PAGE)


def save_report(record: LrfindRecord, stage: Path) -> None:
    """Write the picture, the report and its page into a folder.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    save_figure(draw_range_test(record), stage / "lr.png")
    write_text(stage / "report.json", render_json(record.to_dict()))
    save_folder_page(record, stage)
