"""What comes after a run that was watched: its folder, and what there is to warn of."""

from pathlib import Path

from modelscope_cli.records.progress import Progress
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.folder import OutputFolder
from modelscope_cli.report.views import folder_of
from modelscope_cli.watching.first_images import save_first_images
from modelscope_cli.watching.log import log_file


def conclude(record: WatchRecord, folder: Path | None, progress: Progress) -> WatchRecord:
    """Write the report and the pictures beside the log, where there is a folder, and tell of warnings.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    if folder is not None:
        with OutputFolder(folder, is_forced=True).open() as stage:  # the log is there already
            save_first_images(log_file(folder), stage)
            folder_of("watch").save_watch_report(record, stage)
    for warning in record.run.warnings:
        progress.warn(warning.message)
    if folder is not None:
        progress.note(f"wrote {folder}")
    return record
