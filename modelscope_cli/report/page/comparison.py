"""Two results side by side on one page."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.records.display import Shown
from modelscope_cli.records.naming import counted, some
from modelscope_cli.report import numbers, views
from modelscope_cli.report.formats import DOCUMENT, strict
from modelscope_cli.report.page.charts import DepthCurves, depth_section, line_chart, number_of
from modelscope_cli.report.page.common import anchors, environment, images_section, kind_of, notes
from modelscope_cli.report.page.html import Html, Section, element, joined, render_page
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.reading import PAGE
from modelscope_cli.report.sheet import Column, Sheet
from modelscope_cli.report.training_panels import Trained, curves_of, extent


@dataclass(frozen=True, slots=True)
class RowPair:
    """The row of one label in each of two sheets; None if there is no such row."""

    label: str
    a: Any
    b: Any


def compare_page(a: Shown, b: Shown, files: tuple[Path, Path]) -> str:
    """Return a page with two results of one command side by side; A is the first.

    Args:
        files: the files of the results, in the folders of their images.
    """
    if a.command != b.command:
        message = f"A is a result of {a.command} and B of {b.command}, which have no rows in common"
        raise UsageError(message, "give two results of the same command")
    sheets = views.whole_sheet_of(a), views.whole_sheet_of(b)
    sheet = paired(*sheets)
    changed = _changed(a, b)
    sections = [
        Section("differs", "What differs", _differences(changed)),
        Section("verdict", "Results", _side_by_side(_verdict, a, b, files)),
        *_curves(a, b),
        *_along_depth(sheet, sheets),
        Section("table", "Rows of A and B", _table(a, b, sheet)),
        *_pictures(a, b, files),
        Section("environment", "How they were made", _side_by_side(lambda one: environment(one).body, a, b)),
    ]
    names = dict.fromkeys(_name(one) for one in (a, b))
    title = " and ".join(names) if len(names) > 1 else f"{_name(a)}: two results"
    lead = element("p", f"modelscope {a.command}, two results")
    documents = [strict(one.to_dict()) for one in (a, b)]
    answer = f"{' and '.join(map(_called, files))}: {_summed_up(changed, sheet)}"
    return render_page(title, lead, sections, documents, answer=answer)


def _changed(a: Any, b: Any) -> list[tuple[str, str, str]]:
    """Return what was not the same when two results were made: its name, and its words in A and in B."""
    first, second = (dict(_circumstances(one)) for one in (a, b))
    both = [(name, first.get(name, "-"), second.get(name, "-")) for name in dict.fromkeys((*first, *second))]
    return [one for one in both if one[1] != one[2]]


def _circumstances(record: Any) -> Iterator[tuple[str, str]]:
    """Yield arguments, settings, model, weights, input and versions, each with a name."""
    run = getattr(record, "run", None)
    arguments = (run.argv if run else record.argv)[1:]
    yield from _arguments(arguments)
    settings = getattr(_trained(record), "settings", None)
    yield from ((f"setting {name}", str(value)) for name, value in (settings or {}).items())
    if run is not None:
        weights = run.model.weights
        yield "model", f"{run.model.name} ({run.model.class_name})"
        yield "weights", " ".join(filter(None, (weights.resolved, (weights.sha256 or "")[:12])))
        if run.input is not None:
            files = f": {some(run.input.files, 3)}" if run.input.files else ""
            yield "input", f"{run.input.source} {numbers.shapes(run.input.shape)}{files}"
            yield "preprocessing", run.input.preprocessing or "none"
        yield "device", f"{run.device}, {run.dtype}"
        yield "seed", str(run.seed)
    for one in getattr(getattr(_trained(record), "facts", None), "inputs", ()):
        for span in extent(one.series):
            yield f"{one.model} {one.name}", f"{numbers.shape(one.shape)} {one.dtype}, {span}"
    yield from (run.versions if run else record.versions).items()


def _arguments(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield every option of a command line with its values, and the words before the first as `arguments`."""
    by_kind: dict[str, list[str]] = {"arguments": []}
    name = "arguments"
    for word in words:
        if word.startswith("-") and not word.lstrip("-")[:1].isdigit():
            name, _, value = word.partition("=")
            by_kind.setdefault(name, []).extend([value] if value else [])
        else:
            by_kind[name].append(word)
    for name, values in by_kind.items():
        if name not in _WHERE_TO:
            yield name, shlex.join(values) or ("none" if name == "arguments" else "given")


_WHERE_TO = ("--out", "-o", "--output", "--html", "--plot", "--force", "-q", "--quiet", "-v", "--verbose")


def _differences(changed: Sequence[tuple[str, str, str]]) -> Html:
    if not changed:
        what = "arguments, settings, model, weights, input, device and versions"
        return element("p", f"Nothing: {what} are the same.")
    titles = enumerate(("what", "A", "B"))
    columns = tuple(Column(one, one, itemgetter(n), is_number=False, wraps=n > 0) for n, one in titles)
    sheet = Sheet("", columns, tuple(changed))
    return sheet_section(sheet, "differing", "Differences in how A and B were made.")


def _summed_up(changed: Sequence[tuple[str, str, str]], sheet: Sheet) -> str:
    """Return what was made differently, and how many rows differ."""
    how = some([name for name, _, _ in changed], 4) if changed else "none"
    columns = sheet.columns[1:]
    cells = {column.key: column.cells(sheet.rows) for column in columns}
    pairs = [key.removesuffix("_a") for key in cells if key.endswith("_a") and f"{key[:-2]}_b" in cells]

    def is_other(n: int, row: RowPair) -> bool:
        is_alone = row.a is None or row.b is None
        return is_alone or any(cells[f"{key}_a"][n] != cells[f"{key}_b"][n] for key in pairs)

    others = sum(is_other(n, row) for n, row in enumerate(sheet.rows))
    return f"settings that differ: {how}; {others} of {counted(len(sheet.rows), 'row')} differ"


def _name(record: Any) -> str:
    return views.sheet_of(record).title


def _side_by_side(
    show: Callable[[Any], Html], a: Any, b: Any, files: tuple[Path, Path] | None = None
) -> Html:
    names: Sequence[str] = "AB"
    if files is not None:
        names = [f"{name}: {_called(file)}" for name, file in zip("AB", files, strict=True)]
    columns = (
        element("div", element("h3", name), show(one)) for name, one in zip(names, (a, b), strict=True)
    )
    return element("div", *columns, class_="columns")


def _called(file: Path) -> str:
    """Return the display name of a result: its folder or file name."""
    return file.absolute().parent.name if file.name in (PAGE, DOCUMENT) else file.stem


def _verdict(record: Any) -> Html:
    verdict = element("span", views.answer_of(record), class_=f"verdict {kind_of(record)}".strip())
    return joined([element("p", verdict), notes(views.sheet_of(record))])


def _curves(a: Any, b: Any) -> list[Section]:
    """Return the losses of two trainings on one axis, if both have some."""
    both = [_trained(record) for record in (a, b)]
    if not all(isinstance(one, Trained) for one in both):
        return []
    charts = []
    curves = [curves_of(one) for one in both]
    for title, field, height in (("Loss", "loss", 190), ("Learning rate", "rates", 90)):
        if all(getattr(one, field) for one in curves):
            firsts = [replace(getattr(one, field)[0], name="AB"[n], tone=n) for n, one in enumerate(curves)]
            charts.append(line_chart(title, firsts, height=height))
    return [Section("steps", "Over steps", joined(charts))] if charts else []


def _trained(record: Any) -> Any:
    """Return the record with curves: for `train` its only training, if there is one."""
    trainings: Sequence[Any] = getattr(record, "trainings", ())
    return trainings[0] if len(trainings) == 1 else record


def _along_depth(sheet: Sheet, sheets: tuple[Sheet, Sheet]) -> list[Section]:
    """Return a chart of every numeric column in which two results of a model differ."""
    if not sheets[0].is_by_layer:
        return []
    others = {column.key: column for column in sheets[1].shown()}
    curves = [
        DepthCurves(
            column.title or column.key,
            [number_of(column, row.a) for row in sheet.rows],
            [number_of(others[column.key], row.b) for row in sheet.rows],
        )
        for column in sheets[0].shown()
        if column.is_number and column.key in others
    ]
    return depth_section(curves, [row.label for row in sheet.rows], lambda n: f"row-{n}")


def _table(a: Shown, b: Shown, sheet: Sheet) -> Html:
    opened = _places(a), _places(b)

    def series(row: RowPair) -> str | None:
        found = [places.get(id(one)) for places, one in zip(opened, (row.a, row.b), strict=True)]
        return None if found == [None, None] else ",".join("" if n is None else str(n) for n in found)

    caption = "All rows of both. Highlighted: rows that are present, or flagged, in only one result."
    if any(opened):
        caption += " Click a row to see the histograms, gradients and updates of both."
    return sheet_section(sheet, "rows", caption, anchor=anchors(sheet), series=series)


def _places(record: Any) -> dict[int, int]:
    """Return the index of each layer in the document of a training, by `id`; such rows can be opened."""
    layers: Sequence[Any] = getattr(_trained(record), "layers", None) or ()
    return {id(row): n for n, row in enumerate(layers) if hasattr(row, "series")}


def paired(a: Sheet, b: Sheet) -> Sheet:
    """Join two sheets of the same kind: rows by label, columns side by side."""
    pairs = pair_rows(a, b)
    first = Column(a.columns[0].key, a.columns[0].title, lambda row: row.label, is_number=False)
    others = {column.key: column for column in b.shown()}
    columns = [first]
    for column in a.shown()[1:]:
        if column.key not in others:
            continue
        columns += _both(column, *_written((a, column), (b, others[column.key])))
    return Sheet(
        "",
        tuple(columns),
        tuple(pairs),
        is_bad=lambda row: row.a is None or row.b is None or a.is_bad(row.a) != b.is_bad(row.b),
    )


def _written(*sides: tuple[Sheet, Column]) -> list[dict[int, str]]:
    """Return the cells of a column of both sheets in one notation, by `id` of the row."""
    pairs = [(column, row) for sheet, column in sides for row in sheet.rows]
    first = sides[0][1]
    column = replace(
        first,
        value=lambda one: one[0].value(one[1]),
        text=None if first.text is None else lambda one: one[0].text(one[1]),
    )
    cells = iter(column.cells(pairs))
    return [{id(row): next(cells) for row in sheet.rows} for sheet, _ in sides]


def _both(column: Column, in_a: dict[int, str], in_b: dict[int, str]) -> Sequence[Column]:
    """Return a column of each; text, which is mostly equal, shares one."""

    def of_a(row: RowPair) -> str:
        return in_a.get(id(row.a), "")

    def of_b(row: RowPair) -> str:
        return in_b.get(id(row.b), "")

    def of_both(row: RowPair) -> str:
        return " → ".join(dict.fromkeys(filter(None, (of_a(row), of_b(row)))))

    if column.is_number:
        sides = (("a", of_a), ("b", of_b))
        return [Column(f"{column.key}_{n}", f"{column.title} {n.upper()}", of, of) for n, of in sides]
    return [Column(column.key, column.title, of_a, of_both, is_number=False, wraps=column.wraps)]


def pair_rows(a: Sheet, b: Sheet) -> list[RowPair]:
    """Return the rows of two sheets by label, in A's order; rows only in B follow their predecessor in B.

    Rows with equal labels are paired in order.
    """
    remaining: dict[str, list[Any]] = {}
    for row in b.rows:
        remaining.setdefault(_label(b, row), []).append(row)
    pairs = []
    for row in a.rows:
        same = remaining.get(_label(a, row))
        pairs.append(RowPair(_label(a, row), row, same.pop(0) if same else None))
    of_both = {id(pair.b): pair for pair in pairs if pair.b is not None}
    following: dict[int, list[RowPair]] = {}
    before = 0  # `id` of the pair before B's row; 0 at the beginning
    for row in b.rows:
        if id(row) in of_both:
            before = id(of_both[id(row)])
        else:
            following.setdefault(before, []).append(RowPair(_label(b, row), None, row))
    return [*following.get(0, ()), *(one for pair in pairs for one in (pair, *following.get(id(pair), ())))]


def _label(sheet: Sheet, row: Any) -> str:
    return str(sheet.columns[0].value(row))


def _pictures(a: Shown, b: Shown, files: tuple[Path, Path]) -> list[Section]:
    sections = [
        images_section(one, EmbeddedImages(file.parent)) for one, file in zip((a, b), files, strict=True)
    ]
    if not any(sections):
        return []
    both = _side_by_side(
        lambda sections: joined(section.body for section in sections), sections[0], sections[1]
    )
    return [Section("pictures", "Images", both)]
