"""The display of records in Python: in a notebook, by `print`, as a figure or a page; see `records/display.py`."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import partial
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError, nearest, one_of
from modelscope_cli.output_files import write_text
from modelscope_cli.plain_text import plain
from modelscope_cli.records.run import invocation
from modelscope_cli.report.canvas import SUFFIXES, check_figure, figure_of, save_figure, to_png
from modelscope_cli.report.formats import FORMATS, to_text
from modelscope_cli.report.page.html import shipped
from modelscope_cli.report.page.results import page_of_run, save_folder, save_page, save_run, save_within
from modelscope_cli.report.registry import VIEWS, sheet_of, view_for, view_of
from modelscope_cli.report.sheet import Column, Sheet, other_columns

# Of other modules, for `records.display.report`.
__all__ = ["save_run", "save_within", "sheet_of", "to_text", "view_for", "view_of"]

_LABELS = ("name", "call", "output")  # fields that make the label of a row
_DPI = 130  # of a saved figure


def to_html(sheet: Sheet) -> str:
    """Return the table as HTML with inline style, and a script that sorts it; all text is escaped."""
    columns = sheet.without_empty_columns().shown()
    head = "".join(f"<th{_class(_kind(column))}>{escape(column.title)}</th>" for column in columns)
    facts = "".join(
        f"<dt{_class('warning' if label == 'warning' else '')}>{escape(label)}</dt><dd>{escape(text)}</dd>"
        for label, text in sheet.facts
    )
    body = "".join(_body(sheet, columns))
    rows = f'<table class="rows"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    script = f"<script>(() => {{{shipped('sort.js')}{shipped('notebook.js')}}})();</script>"
    head = f'<style>{shipped("notebook.css")}</style><p class="title">{escape(sheet.title)}</p>'
    below = f'{script}<dl class="facts">{facts}</dl>'
    return f'<div class="modelscope">{head}<div class="scroll">{rows}</div>{below}</div>'


def _body(sheet: Sheet, columns: Sequence[Column]) -> Iterator[str]:
    cells = list(zip(*(column.cells(sheet.rows) for column in columns), strict=True))
    for n, row in enumerate(sheet.rows):
        marks = {"bad": sheet.is_bad(row), "dim": sheet.is_dim(row)}
        name = f' data-name="{escape(plain(str(columns[0].value(row))))}"' if sheet.is_tree else ""
        texts = (
            f"<td{name * (column is columns[0])}{_class(_kind(column, row))}>{escape(cell)}</td>"
            for column, cell in zip(columns, cells[n], strict=True)
        )
        yield f"<tr{_class(' '.join(mark for mark, is_so in marks.items() if is_so))}>{''.join(texts)}</tr>"


def _kind(column: Column, row: Any = None) -> str:
    kind = "n" if column.is_number else "w" if column.wraps else ""
    return f"{kind} bad".strip() if row is not None and column.is_bad(row) else kind


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def plot(record: Any, file: str | PathLike[str] | None, picture: str | None) -> Any:
    """Draw one of the figures of a record's command; see `Shown.plot`."""
    try:
        figure = _draw(record, picture)
        if file is not None:
            check_figure(Path(file), is_forced=True)  # as matplotlib's own savefig does
            save_figure(figure, Path(file), _DPI)
    except UsageError as error:
        if not invocation().argv:
            error.speak_python()
        raise
    figure._repr_png_ = partial(to_png, figure, 100)  # displays in a notebook without pyplot
    return figure


def _draw(record: Any, picture: str | None) -> Any:
    figures = view_of(record).figures
    if not figures and (image := view_of(record).preview(record)) is not None:
        return figure_of(image, _DPI)
    if not figures:
        but = " of tensors or noise, nor one that was read back" if view_of(record).shown_below else ""
        shown = f'record.save("{record.command}.html")   has the table; stats and grads draw figures'
        raise UsageError(f"{record.command} does not draw a figure{but}", shown)
    if picture is not None and picture not in figures:
        near = nearest(picture, figures)
        message = f"'{picture}' is not a figure of {record.command}" + (f": {near}" if near else "")
        raise UsageError(message, one_of(picture, figures))
    if not len(record) and record.command != "lrfind":  # whose figure is of its steps
        raise UsageError("there is nothing to draw: the record has no rows", "print(record)")
    return figures[picture or next(iter(figures))](record)


def figure_below(record: Any) -> str:
    """Return the figure of a result that is looked at, as HTML; empty where the table is the result."""
    from modelscope_cli.report.page.images import EmbeddedImages

    view = view_of(record)
    if not view.shown_below:
        return ""
    folder = getattr(record, "out_dir", None)
    embedded = EmbeddedImages(Path(folder) if folder else None)
    image = embedded.figure(view.shown_below, record.command)
    if image is None and (data := view.preview(record)) is not None:
        image = embedded.drawn(data, record.command)
    if image is None:
        try:
            image = embedded.drawn(to_png(_draw(record, None), 100), record.command)
        except UsageError:  # it has no rows, or was made without what is drawn
            return ""
    return f'<div class="modelscope below">{image}</div>'


def card_of(row: Any) -> list[tuple[str, str]]:
    """Return the columns of a row that have a value: those of its annotations, else its plain fields."""
    columns = [column for column in other_columns(type(row), ()) if column.is_shown]
    cells = [(column.title, column.cells([row])[0]) for column in columns]
    if not columns:
        values = [
            (field.name, getattr(row, field.name)) for field in fields(row) if field.name not in _LABELS
        ]
        cells = [(name, str(value)) for name, value in values if isinstance(value, str | int | float)]
    return [(title, plain(text)) for title, text in cells if text]


def columns_of(row: Any) -> dict[str, Column]:
    """Return the columns by key, of the tables of the command whose record the row is of."""
    command = type(row).__module__.rpartition(".")[2]
    known = view_for(command).columns if command in VIEWS else ()
    return {one.key: one for one in (*other_columns(type(row), known), *reversed(known))}


def to_page(record: Any, file: str | PathLike[str] | None) -> str:
    """Return the page of a record, and save it if a `file` is given."""
    page = page_of_run(record)
    if file is not None:
        save_page(page, Path(file))
    return page


def save(record: Any, path: str | PathLike[str]) -> Any:
    """Save a record in a folder, or in the format that the name of the file asks for; see `Shown.save`."""
    try:
        return _save(record, Path(path))
    except UsageError as error:
        error.speak_python()
        raise


def save_tensors(record: Any, file: Path) -> Any:
    """Save the tensors that a record keeps as .safetensors; return the record, which names the file."""
    from modelscope_cli.tensor_file import write_tensors

    tensors = view_of(record).tensors(record)
    assert tensors is not None
    write_tensors(file, tensors)
    return record.with_changes(tensors=str(file))


def _save(record: Any, path: Path) -> Any:
    suffix = path.suffix.lower()
    view = view_of(record)
    texts = {one.suffix: one for name, one in FORMATS.items() if one.suffix and name != "table"}
    if path.is_dir() or not suffix:
        return save_folder(record, path, is_forced=True)
    if one := texts.get(suffix):
        write_text(path, one.render(record if one.of == "record" else view.whole_sheet(record)))
    elif suffix == ".safetensors" and view.tensors(record) is not None:
        return save_tensors(record, path)
    elif suffix == ".html":
        to_page(record, path)
    elif suffix in SUFFIXES:
        plot(record, path, None)
    else:
        endings = ", ".join([".html", *texts, *SUFFIXES])
        raise UsageError(f"'{path}' does not end in one of {endings}", 'record.save("result.json")')
    return record
