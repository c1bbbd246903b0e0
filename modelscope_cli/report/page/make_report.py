"""The function `report`: the page of a result."""

from os import PathLike
from pathlib import Path

from modelscope_cli.errors import UsageError
from modelscope_cli.output_files import check_file
from modelscope_cli.records.listings import Page, ReportRecord
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.reading import is_page, read, result_file
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.report.page.results import page_of, save_page
from modelscope_cli.report.registry import view_of


def make_report(
    result: str | PathLike[str],
    *,
    html: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ReportRecord:
    """Make one self-contained page of a saved result.

    Args:
        result: the folder of a command, its `report.json`, what `-o result.json` wrote, or another page.
        html: where the page is written; None for `report.html` in the folder of the result.
        force: also write a page above 25 MB.

    Raises:
        UsageError: the page is too large, or is there already and was not made by us (exit 2 on the command line).
        CannotRunError: there is no result, or the page cannot be written (exit 4).
    """
    told = progress or SILENT
    try:
        file = result_file(Path(result))
        target = Path(html) if html is not None else file.with_suffix(".html")
        check_file(target, invocation().is_forced or is_page(target))
        record = read(file)
        # The folder is the only source of its images, whatever the file says.
        note = save_page(page_of(record, file.parent), target, is_forced=force)
    except UsageError as error:
        if not invocation().argv:
            error.speak_python()
        raise
    if note:
        told.note(note)
    told.note(f"wrote {target}")
    run = getattr(record, "run", None)
    model = run.model.short_name if run else getattr(record, "source", "")
    page = Page(str(target), target.stat().st_size, record.command, model, view_of(record).headline(record))
    return ReportRecord(versions(), invocation().argv, (page,))
