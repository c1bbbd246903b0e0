"""Write a result in the requested format, to stdout or to a file."""

import os
import shlex
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from modelscope_cli.errors import ModelscopeError, UsageError, commented
from modelscope_cli.paths import with_file
from modelscope_cli.plain_text import markdown
from modelscope_cli.records.refusals import unknown
from modelscope_cli.records.run import invocation
from modelscope_cli.report.formats import FORMATS, Format, render_markdown, to_text
from modelscope_cli.shell import console as _console

if TYPE_CHECKING:
    from modelscope_cli.records.display import Shown
    from modelscope_cli.report.ci import Review
    from modelscope_cli.report.sheet import Layout, Sheet

T = TypeVar("T")
R = TypeVar("R", bound="Shown")
_LOG_WIDTH = 100
_LOGS = ("CI", "PRE_COMMIT")  # variables that CI hosts and pre-commit set


@dataclass(frozen=True, slots=True)
class Destination:
    """The output of a result: format, file (None for stdout), rows and columns."""

    format: str
    file: Path | None
    layout: "Layout"
    html: Path | None  # a page to write in addition
    formats: Mapping[str, Format]  # those of the command, by name

    @property
    def is_asked_for(self) -> bool:
        """Whether a file or a format was requested."""
        return self.file is not None or self.html is not None or self.format != "auto"


def destination(
    format: str,
    is_json: bool,
    file: Path | None,
    layout: "Layout",
    more: Mapping[str, Format] | None = None,
    page: Path | None = None,
) -> Destination:
    """Check the output options before anything runs. `more`: formats that only this command has, by name."""
    formats = {**FORMATS, **(more or {})}
    if format not in ("auto", *formats):
        if format in ("github", "gitlab", "sarif", "junit"):
            hint = f"modelscope check --help   has --format {format}, and --min-accuracy"
            raise UsageError(f"'{format}' is not a format of this command", hint)
        raise unknown("a format", format, ("auto", *formats))
    if is_json:
        if format not in ("auto", "json"):
            raise UsageError(f"'--json' and '--format {format}' cannot be combined", "leave out --json")
        format = "json"
    if page is not None:
        check_page(page)
    if file is None:
        return Destination(format, None, layout, page, formats)
    if format == "auto":
        format = {one.suffix: name for name, one in formats.items()}.get(file.suffix.lower(), "")
        if not format:
            is_page = file.suffix.lower() in (".html", ".htm")
            every = f"--format {next(iter(formats))}   one of {', '.join(formats)}"
            hint = f"leave out --output {shlex.quote(str(file))}   --html writes a page" if is_page else every
            hint = (None if file.suffix else _as_folder()) or hint
            raise UsageError(f"'--output {file}' has no suffix that names a format", hint)
    check_target(file)
    return Destination(format, file, layout, page, formats)


def _as_folder() -> str | None:
    """Return the command line with a folder of figures instead of the file; None for a command without one."""
    from modelscope_cli.shell.parameters import options_of

    argv = _console.settings.argv
    if not argv or "--out" not in options_of(argv[0]):
        return None
    words = ("--out" if word in ("-o", "--output") else word.replace("--output=", "--out=") for word in argv)
    return shlex.join(["modelscope", *words]) + "   a folder for the figures"


def check_page(file: Path) -> None:
    """Refuse a page without an HTML suffix, or that cannot be written; see `check_target`."""
    from modelscope_cli.output_files import check_file
    from modelscope_cli.records.reading import is_page

    if file.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"'--html {file}' does not end in .html", with_file("--html", file, ".html"))
    check_file(file, invocation().is_forced or is_page(file))


def check_target(file: Path) -> None:
    """Refuse, before anything runs, a file that cannot be written, or that exists without --force."""
    from modelscope_cli.output_files import check_file

    check_file(file, invocation().is_forced)


def check_tensors_file(file: Path) -> None:
    """Refuse, before anything runs, a file for --save-tensors that is not of safetensors; see `check_target`."""
    if file.suffix.lower() != ".safetensors":
        hint = f"--save-tensors {shlex.quote(str(file.with_suffix('.safetensors')))}"
        raise UsageError(f"'--save-tensors {file}' does not end in .safetensors", hint)
    check_target(file)


def emit(
    where: Destination,
    sheet: "Sheet",
    record: "Shown",
    review: "Callable[[], Review] | None" = None,
    verdict: Sequence[tuple[str, str]] = (),
) -> None:
    """Write the result: the sheet, the record or the review, whichever the format renders.

    Of several processes with the same result, only the first writes.

    Args:
        verdict: facts of the sheet that also belong into a log, such as `watch train.py > train.log`.
    """
    from modelscope_cli.report.ci import last_line

    if _console.settings.is_silent:
        return
    _console.settings.on_failure = None
    if review is not None:
        found = replace(sheet, rows=tuple(row for row in sheet.rows if not sheet.is_dim(row)))
        _append_summary(render_markdown(found))
    sheet = where.layout.arrange(sheet if _console.settings.is_verbose else sheet.without_definitions())

    def render(format: Format) -> str:
        if format.of == "review" and review is not None:
            return format.render(review())
        return format.render(record if format.of == "record" else sheet)

    if where.html is not None:
        _write_page(where.html, record)
    format = _resolved(where)
    if where.formats[format].is_rows_only:
        for line in [*[sheet.title] * (not sheet.rows), *_lines(sheet.facts)]:  # why there is no row
            _console.note(line)
    if where.file is not None:
        from modelscope_cli.output_files import write_text

        write_text(where.file, render(where.formats[format]))
        _console.note(f"wrote {where.file}")
        if review is not None:
            _console.note(last_line(review()))
        return
    if format == "table" and _console.stdout().isatty():
        from modelscope_cli.report.fold import fold
        from modelscope_cli.report.table import render_table

        is_whole = where.layout.is_whole or where.layout.top is not None
        seen = sheet if where.layout.columns else sheet.without_empty_columns()
        _console.show(render_table(seen, _console.terminal_width(), None if is_whole else fold(seen)))
    elif format == "table" and where.format == "auto":
        # The last line names the command, too: a log may hold several
        told = sheet if review is None else replace(sheet, facts=sheet.facts_of(is_answer=False))
        _console.write(to_text(told, _LOG_WIDTH) + (f"{last_line(review())}\n" if review else ""))
    else:
        _console.write(render(where.formats[format]))
        if verdict and where.format == "auto" and not _is_one_stream():
            _console.write("".join(f"{line}\n" for line in _lines(verdict)))


def _lines(facts: Sequence[tuple[str, str]]) -> list[str]:
    return [f"{label}: {text}" if label else text for label, text in facts]


def _is_one_stream() -> bool:
    """Tell whether notes go where the result goes, as with `> train.log 2>&1`."""
    try:
        return os.path.sameopenfile(_console.stdout().fileno(), sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or not a real stream
        return False


def emit_failure(where: Destination, error: ModelscopeError) -> None:
    """Write the error that ended the command to the job summary, and in a format for CI hosts."""
    if all(one.of != "review" for one in where.formats.values()):
        return
    line = shlex.join(("modelscope", *_console.settings.argv))
    hint = f"\n\nhint: {markdown(commented(error.hint))}" if error.hint else ""
    _append_summary(f"### Not judged: {markdown(line)}\n\nerror: {markdown(error.message)}{hint}\n")
    format = where.formats.get(where.format)
    if format is None or format.of != "review":
        return
    from modelscope_cli.output_files import write_text
    from modelscope_cli.report.ci import failed

    text = format.render(failed(_console.settings.argv, error))
    _console.write(text) if where.file is None else write_text(where.file, text)


def _append_summary(text: str) -> None:
    """Append to the job summary of GitHub Actions, if its file is set."""
    if file := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(file).open("a", encoding="utf-8") as summary:
                summary.write(f"{text}\n")
        except OSError as error:
            _console.warn(f"the job summary was not written: {error}")


def _write_page(file: Path, record: "Shown") -> None:
    from modelscope_cli.report.page.results import page_of_run, save_page

    note = save_page(page_of_run(record), file)
    if note:
        _console.note(note)
    _console.note(f"wrote {file}")


def save_as(record: R, file: Path) -> R:
    """Save a result in a file whose suffix names the format, and say so; return the record, which names the file.

    Of several processes with the same result, only the first writes.
    """
    if _console.settings.is_silent:
        return record
    saved = record.save(file)
    _console.note(f"wrote {file}")
    return saved


def save_report(
    record: R, folder: Path | None, *, has_content: bool = False, content: Callable[[R], str] | None = None
) -> R:
    """Save a result in the folder of --out, and say so; return the record, which names its files.

    Of several processes with the same result, only the first writes.

    Args:
        folder: None for a result that is only printed.
        has_content: whether the run has written to the folder already.
        content: says what was written, from the saved record.
    """
    from modelscope_cli.report.page.results import save_folder

    if folder is None or _console.settings.is_silent:
        return record
    saved = save_folder(record, folder, is_forced=has_content or invocation().is_forced)
    what = ", ".join(getattr(saved, "files", ())) if content is None else content(saved)
    _console.note(f"wrote {folder}" + (f" ({what})" if what else ""))
    return saved


def is_streamed(where: Destination) -> bool:
    """Tell whether rows can be written to stdout one by one."""
    is_in_order = where.layout.sort is None and where.layout.top is None
    is_alone = where.file is None and where.html is None
    return is_alone and where.formats[_resolved(where)].is_rows_only and is_in_order


def row_writer(where: Destination, lay_out: Callable[[T], "Sheet"]) -> Callable[[T], None]:
    """Return a function that writes the rows of each record to stdout at once, under one header.

    Only for a destination that `is_streamed`.

    Args:
        lay_out: returns the sheet of a record, always with the same columns.
    """
    render = where.formats[_resolved(where)].render
    header: str | None = None

    def write(record: T) -> None:
        nonlocal header
        sheet = where.layout.arrange(lay_out(record))
        if header is None:
            header = render(replace(sheet, rows=()))
            _console.write(header)
        _console.write(render(sheet).removeprefix(header))

    return write


def _resolved(where: Destination) -> str:
    if where.format == "auto":
        return "table" if _console.stdout().isatty() or _is_log() else "tsv"
    return where.format


def _is_log() -> bool:
    """Tell whether stdout is the log of a CI job or of pre-commit, which a person reads; a file is not."""
    try:
        is_file = stat.S_ISREG(os.fstat(_console.stdout().fileno()).st_mode)
    except (OSError, ValueError):  # closed, or not a real stream
        return False
    return not is_file and any(os.environ.get(name, "").lower() not in ("", "0", "false") for name in _LOGS)
