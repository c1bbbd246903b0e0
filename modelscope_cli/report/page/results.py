"""The page of a result, and the files of its folder."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from modelscope_cli.errors import ModelscopeError, UsageError
from modelscope_cli.output_files import OutputFolder, write_text
from modelscope_cli.records.display import Shown
from modelscope_cli.records.documents import restore
from modelscope_cli.records.reading import DOCUMENT, PAGE, read
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.formats import render_json, strict
from modelscope_cli.report.page.common import ERROR, SOUND, WARNING, environment, kind_of
from modelscope_cli.report.page.html import Section, element, facts, joined, render_page, within
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.registry import view_of

R = TypeVar("R", bound=Shown)

NOTED, REFUSED = 5_000_000, 25_000_000
"""Bytes: a page above the first is slow to open, one above the second many browsers do not open at all."""

_AGAIN_S = 5  # before the browser loads the page of a run that goes on again
_MOST_ROWS = 25_000  # of an automatic page; more would take longer than the command itself


def page_of(record: Shown, folder: Path | None = None, *, later: Path | None = None) -> str:
    """Return a result as one self-contained HTML file: the same bytes whether it was just made or read back.

    `folder`: of its images; None for the one that the result names. `later`: as in `EmbeddedImages`.
    """
    return _content_of(record, folder, later=later).page()


def page_of_run(record: Shown) -> str:
    """Return the page of a result of this process, with the figures that its folder would have."""
    return _content_of_run(record).page()


def page_of_parts(records: Sequence[Shown], failed: Mapping[str, str]) -> str:
    """Return one page of several results of one model; its heading is the answer of the first.

    Args:
        failed: why other parts are missing, by command.
    """
    parts = [_content_of_run(record) for record in records]
    # That a map fails its test says something about the method, not about the model.
    kinds = [part.kind for part in parts if part.command != "explain"]
    heading = parts[0].answer
    sections = []
    for part in parts:  # each with its answer, unless that is the heading of the page
        inner = (joined([element("h3", one.title), one.body]) for one in part.sections)
        answer = element("p", part.answer, class_=f"answer {part.kind}".strip())
        body = joined([answer if part.answer != heading else None, *inner])
        sections.append(Section(part.command, part.command, within(part.command, body)))
    if failed:
        sections.append(Section("not-run", "not run", facts([*failed.items()])))
    first = parts[0]
    lead = element("p", f"modelscope report: {first.title}")
    kind = next((kind for kind in (ERROR, WARNING, SOUND) if kind in kinds), "")
    documents = [part.document for part in parts]
    return render_page(first.title, lead, [*sections, first.made], documents, answer=heading, kind=kind)


@dataclass(frozen=True, slots=True)
class _Content:
    """What the page of a result is made of."""

    command: str
    title: str
    answer: str
    kind: str  # see `kind_of`
    sections: Sequence[Section]
    made: Section  # how it was made
    document: dict[str, Any]

    def page(self) -> str:
        """Return the page of this result alone."""
        title = f": {self.title}" if self.title != self.answer else ""
        lead = element("p", f"modelscope {self.command}{title}")
        sections = [*self.sections, self.made]
        return render_page(self.title, lead, sections, [self.document], answer=self.answer, kind=self.kind)


def _content_of(
    record: Shown, folder: Path | None = None, *, later: Path | None = None, saved: Shown | None = None
) -> _Content:
    """Return the content; `saved` is the result as saved for this page, whose files its data does not name."""
    document = strict(record.to_dict())
    record = restore(document if saved is None else strict(saved.to_dict()))
    view = view_of(record)
    embedded = EmbeddedImages(folder or named_folder(record), later=later)
    sections = view.sections(record, embedded)
    sheet, answer = view.sheet(record), view.headline(record)
    kind = kind_of(record, sheet) if answer == view.answer(record) else WARNING
    return _Content(record.command, sheet.title, answer, kind, sections, environment(record), document)


def _content_of_run(record: Shown) -> _Content:
    if getattr(record, "kept", None) is None or named_folder(record) is not None:
        return _content_of(record)
    with TemporaryDirectory() as folder:
        return _content_of(record, Path(folder), saved=view_of(record).save_files(record, Path(folder)))


def named_folder(record: Any) -> Path | None:
    out = getattr(record, "out_dir", None)
    return Path(out) if out else None


def save_result(
    record: Shown, stage: Path, path: Path, *, is_indented: bool = True, is_drawing: bool = True
) -> None:
    """Write the document of a result and its page into the folder of its images.

    They are written to `stage`, and moved to `path` later. In place of a page that would be too large, a file
    refers to `modelscope report`. `is_drawing`: whether the page gets figures that are not in the folder.
    """
    write_text(stage / DOCUMENT, render_json(record.to_dict(), is_indented=is_indented))
    n = len(view_of(record).whole_sheet(record).rows)
    later = None if is_drawing else path
    page = page_of(record, stage, later=later) if n <= _MOST_ROWS else None
    if page is None or len(page.encode(errors="replace")) > REFUSED:
        size = f"{n:,} rows" if page is None else numbers.memory(len(page))
        again = f"modelscope report {shlex.quote(str(path))} --force"
        notice = f"The page would take {size}. To make it anyway: {again}"
        page = render_page(
            view_of(record).sheet(record).title, element("p", notice), [environment(record)], []
        )
    write_text(stage / PAGE, page)


def save_folder(record: R, path: Path, *, is_forced: bool) -> R:
    """Write a result into a folder: its figures and tables, its document, and its page, which embeds the figures.

    Those of an earlier result there are removed; all other files are kept.

    Returns:
        The record as it was written, with the folder and the names of its files.
    """
    with OutputFolder(path, is_forced).open() as stage:
        stale = _files_of(path) if is_forced else set()
        saved = save_within(record, stage, path)
        stale -= {file.name for file in stage.iterdir()}
    for name in stale:
        (path / name).unlink(missing_ok=True)
    return saved


def _files_of(folder: Path) -> set[str]:
    """Return the names of the figures and tables that the result in a folder says it has there."""
    files: tuple[str, ...] = ()
    with suppress(ModelscopeError):
        files = getattr(read(folder), "files", ())
    return {name for name in files if isinstance(name, str) and Path(name).name == name}


def save_within(record: R, stage: Path, path: Path) -> R:
    """Write a result into the open staging folder of `path`, beside files that are in it; see `save_folder`."""
    saved = view_of(record).save_files(record.with_changes(out_dir=str(path)), stage)
    save_result(saved, stage, path)
    return saved


def save_run(
    record: WatchRecord,
    stage: Path,
    path: Path,
    attempt: Callable[[str], AbstractContextManager[None]],
    *,
    has_figures: bool,
) -> None:
    """Write a watched run into the staging folder of `path`, as far as that works; see `write_run`."""
    from modelscope_cli.report.watch.figures import write_run

    write_run(record, stage, attempt, has_figures=has_figures)
    with attempt("report.json or report.html was not written"):
        # On one line: one number per line would make long series many times larger.
        save_result(record, stage, path, is_indented=False, is_drawing=has_figures)


def save_running(record: Shown, file: Path) -> None:
    """Write the page of a run that goes on; the browser loads it again every few seconds, until it is over."""
    again = element("meta", http_equiv="refresh", content=_AGAIN_S)
    write_text(file, page_of(record).replace("<head>", f"<head>{again}", 1))


def save_page(page: str, file: Path, *, is_forced: bool = False) -> str | None:
    """Write a page; return a note about its size, if it is large."""
    size = len(page.encode(errors="replace"))
    if size > REFUSED and not is_forced:
        most = numbers.memory(REFUSED)
        message = f"the page would take {numbers.memory(size)}; many browsers cannot open more than {most}"
        raise UsageError(message, "--force   or fewer layers by --layer")
    write_text(file, page)
    return f"{file} is {numbers.memory(size)} and may open slowly" if size > NOTED else None
