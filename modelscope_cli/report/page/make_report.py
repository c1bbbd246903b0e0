"""The function `report`: the page of a result, and the index of a folder of them."""

import os
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.output_files import check_file
from modelscope_cli.records.display import Shown
from modelscope_cli.records.listings import Page, ReportRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.run import invocation, versions
from modelscope_cli.report import numbers, views
from modelscope_cli.report.formats import DOCUMENT
from modelscope_cli.report.page.html import Html, Section, element, facts, joined, render_page
from modelscope_cli.report.page.results import page_of, save_page
from modelscope_cli.report.reading import PAGE, in_folder, is_page, read, result_file
from modelscope_cli.report.sheet import natural_key

INDEX = "index.html"


def index_page(folder: Path, target: Path, pages: Sequence[Page], left_out: Sequence[str] = ()) -> str:
    """Return a page with links to the pages of a folder, relative to `target`.

    Args:
        left_out: errors of the results without a page.
    """
    titles = ("result", "verdict", "command", "model", "size")
    head = element(
        "tr",
        *(element("th", title, scope="col", class_="n" if title == "size" else None) for title in titles),
    )
    rows = [_row(page, target.parent) for page in pages]
    body = element(
        "table",
        element("caption", f"{counted(len(pages), 'result')} in {folder}"),
        element("thead", head),
        element("tbody", *rows),
        class_="rows",
        id="results",
    )
    table = element("div", body, class_="scroll", tabindex=0, role="region", aria_label="Results")
    missing = facts([("left out", words) for words in left_out])
    section = Section("results-section", "Results", joined([table, missing]))
    return render_page(str(folder.absolute().name), element("p", "modelscope report"), [section], [])


def _row(page: Page, here: Path) -> Html:
    file = Path(page.file)
    link = element("a", file.parent.name, href=quote(os.path.relpath(file, here)))
    cells = (page.verdict, page.command, page.model)
    size = element("td", numbers.memory(page.bytes))
    return element(
        "tr", element("th", link, scope="row"), *(element("td", cell, class_="l") for cell in cells), size
    )


def make_report(
    result: str | PathLike[str],
    *,
    html: str | PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ReportRecord:
    """Make one self-contained page of a saved result.

    Args:
        result: the folder of a command, its `report.json`, what `-o result.json` wrote, or another page. A folder
            of such folders gives an index that leads to their pages, which are made where they are missing.
        html: where the page is written; None for `report.html` in the folder of the result, `index.html` in a
            folder of results.
        force: also write pages above 25 MB.

    Raises:
        UsageError: the page is too large, or is there already and was not made by us (exit 2 on the command line).
        CannotRunError: there is no result, or the page cannot be written (exit 4).
    """
    left_out: list[str] = []
    try:
        pages = tuple(_pages(Path(result), html, force, progress or SILENT, left_out))
    except UsageError as error:
        if not invocation().argv:
            error.speak_python()
        raise
    return ReportRecord(versions(), invocation().argv, pages, tuple(left_out))


def _pages(
    path: Path,
    html: str | PathLike[str] | None,
    force: bool,
    progress: Progress,
    left_out: list[str],
) -> Iterator[Page]:
    """Make the pages; append to `left_out` the errors of results that are missing in an index."""
    if path.is_dir() and in_folder(path) is None and (folders := _results_in(path)):
        target = _checked(Path(html) if html is not None else path / INDEX)
        pages = _pages_in(folders, force, progress, left_out)
        yield _written(index_page(path, target, pages, left_out), target, force, progress, "index", "")
        yield from pages
    else:
        file = result_file(path)
        target = _checked(Path(html) if html is not None else file.with_suffix(".html"))
        yield _one(read(file), file, target, force, progress)


def _one(record: Shown, file: Path, target: Path, force: bool, progress: Progress) -> Page:
    """Make the page of a result; its folder is the only source of its images, whatever the file says."""
    text = page_of(record, file.parent)
    return _written(text, target, force, progress, record.command, _model(record), views.answer_of(record))


def _results_in(folder: Path) -> list[Path]:
    """Return the subfolders with a result, in natural order: `run9` before `run10`."""
    inner = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    paths = [path for path in inner if in_folder(path) is not None]
    return sorted(paths, key=lambda path: natural_key(path.name))


def _pages_in(folders: Sequence[Path], force: bool, progress: Progress, left_out: list[str]) -> list[Page]:
    """Return the pages of all readable results; append the errors of the others to `left_out`."""
    pages: list[Page] = []
    first: CannotRunError | None = None
    for folder in folders:
        try:
            pages.append(_page_in(folder, force, progress))
        except CannotRunError as error:
            first = first or error
            left_out.append(error.message)
            progress.warn(f"left out of the index: {error.message}")
    if first is not None and not pages:
        raise first
    return pages


def _page_in(folder: Path, force: bool, progress: Progress) -> Page:
    """Return the page of a result, making it if there is none."""
    page = folder / PAGE
    record = read(folder)
    if page.is_file():
        return Page(str(page), page.stat().st_size, record.command, _model(record), views.answer_of(record))
    return _one(record, folder / DOCUMENT, page, force, progress)


def _checked(target: Path) -> Path:
    """Refuse a file that cannot be written, or that exists and is not a page of modelscope."""
    check_file(target, invocation().is_forced or is_page(target))
    return target


def _written(
    text: str, target: Path, force: bool, progress: Progress, command: str, model: str, verdict: str = ""
) -> Page:
    note = save_page(text, target, is_forced=force)
    if note:
        progress.note(note)
    progress.note(f"wrote {target}")
    return Page(str(target), target.stat().st_size, command, model, verdict)


def _model(record: Any) -> str:
    run = getattr(record, "run", None)
    return run.model.short_name if run else getattr(record, "source", "")
