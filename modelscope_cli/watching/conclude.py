"""Write the folder of a watched run and print its warnings."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

from modelscope_cli.errors import afterwards
from modelscope_cli.output_files import OutputFolder
from modelscope_cli.records import display
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.request import WatchRequest


def conclude(
    record: WatchRecord, folder: Path | None, request: WatchRequest, *, report: Path | None = None
) -> WatchRecord:
    """Write the report, if there is a folder, and print the warnings.

    Args:
        report: the folder with the log of an earlier run. None if a training has just ended, whose log is in
            `folder`: errors become warnings, and no figures are drawn.
    """
    progress = request.progress
    attempt = partial(afterwards, progress.warn) if report is None else nullcontext
    if folder is not None:
        has_log = report is None or (folder.exists() and folder.samefile(report))
        with (
            attempt(f"the report was not written to '{folder}'"),
            OutputFolder(folder, is_forced=has_log or request.force).open() as stage,
        ):
            display.report().save_run(record, stage, folder, attempt, has_figures=report is not None)
    for warning in record.run.warnings:
        progress.warn(warning.message)
    if folder is not None:
        progress.note(f"wrote {folder}")
    return record
