"""What `watch` leaves behind beside its log: the report, and the figures where they are asked for."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from modelscope_cli.commands.watch.table import watch_sheet
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.delimited import render_csv
from modelscope_cli.report.folder import write_text
from modelscope_cli.report.page.results import save_result


def save_watch_report(
    record: WatchRecord,
    stage: Path,
    attempt: Callable[[str], AbstractContextManager[None]],
    *,
    has_figures: bool,
) -> None:
    """Write the report and its table into a folder.

    Args:
        has_figures: draw the figures as well, which may take longer than the training.
        attempt: opened around each of them, with what there is not where that fails.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    with attempt("layers.csv was not written"):
        write_text(stage / "layers.csv", render_csv(watch_sheet(record)))
    if has_figures and record.recorded:
        from modelscope_cli.commands.watch.pictures import save_figures

        save_figures(record, stage, attempt)
    with attempt("report.json or report.html was not written"):
        # On one line: a number a line would make long series many times larger.
        save_result(record, stage, is_indented=False)
