"""What `watch` leaves behind beside its log: the report and the figures."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from modelscope_cli.commands.watch.pictures import save_figures
from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result


def save_watch_report(
    record: WatchRecord, stage: Path, attempt: Callable[[str], AbstractContextManager[None]]
) -> None:
    """Write the report, its table and the figures into a folder.

    Args:
        attempt: opened around each of them, with what there is not where that fails.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    with attempt("layers.csv was not written"):
        write_text(stage / "layers.csv", render_csv(watch_sheet(record)))
    if record.recorded:
        save_figures(record, stage, attempt)
    with attempt("report.json or report.html was not written"):
        # On one line: a number a line would make long series many times larger.
        save_result(record, stage, is_indented=False)
