"""What `lrfind` leaves behind: the report, the curve and the page of both."""

from pathlib import Path

from modelscope_cli.commands.lrfind.pictures import draw_range_test
from modelscope_cli.records.lrfind import LrfindRecord
from modelscope_cli.report.canvas import save_figure
from modelscope_cli.report.page.results import save_result
from modelscope_cli.report.reading import RESULT_FILES

FILES = ("lr.png", *RESULT_FILES)


def save_report(record: LrfindRecord, stage: Path) -> None:
    """Write the picture, the report and its page into a folder.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    save_figure(draw_range_test(record), stage / "lr.png")
    save_result(record, stage)
