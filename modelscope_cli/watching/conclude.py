"""What comes after a run that was watched: its folder, and what there is to warn of."""

from contextlib import nullcontext
from functools import partial
from pathlib import Path

from modelscope_cli.errors import afterwards
from modelscope_cli.output_files import OutputFolder
from modelscope_cli.records.display import renderer
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.watching.first_images import save_first_images
from modelscope_cli.watching.log import log_file


def conclude(
    record: WatchRecord, folder: Path | None, progress: Progress, *, is_afterwards: bool = True
) -> WatchRecord:
    """Write the report beside the log, where there is a folder, and tell of warnings.

    Args:
        is_afterwards: what fails is told, since a training has just ended, and no figure is drawn; without it
            errors are raised.
    """
    attempt = partial(afterwards, progress.warn) if is_afterwards else nullcontext
    if folder is not None:
        with (
            attempt(f"the report was not written to '{folder}'"),
            OutputFolder(folder, is_forced=True).open() as stage,  # the log is there already
        ):
            with attempt("the first images were not written"):
                save_first_images(log_file(folder), stage)
            renderer().figures_of("watch").save_watch_report(
                record, stage, attempt, has_figures=not is_afterwards
            )
    for warning in record.run.warnings:
        progress.warn(warning.message)
    if folder is not None:
        progress.note(f"wrote {folder}")
    return record
