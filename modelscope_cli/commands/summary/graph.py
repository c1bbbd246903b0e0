"""The graph of a model, from a summary that recorded its dataflow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelscope_cli.commands.summary.table import summary_sheet
from modelscope_cli.errors import UsageError
from modelscope_cli.output_files import check_file, write_text
from modelscope_cli.paths import with_file
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.refusals import check_choice
from modelscope_cli.records.run import invocation
from modelscope_cli.records.summary import COLORS, MEASURED, LayerShape, SummaryRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.formats import strict
from modelscope_cli.report.graph.drawing import Words, as_file, draw
from modelscope_cli.report.graph.items import items_of
from modelscope_cli.report.page.common import environment
from modelscope_cli.report.page.html import Section, element, joined, render_page
from modelscope_cli.report.page.results import save_page
from modelscope_cli.report.page.tables import shade_chooser
from modelscope_cli.report.reading import is_page
from modelscope_cli.report.shades import Shade


def check_graph(file: Path | None, color: str | None, page: Path | None) -> None:
    """Refuse early a file that cannot be written and a column that cannot colour the graph."""
    if color is not None:
        _check_color(color)
    if file is None:
        if color is not None:
            raise UsageError("'--color' needs --graph", f"--graph model.svg --color {color}")
        return
    _check_suffix(file)
    if page is not None and page.resolve() == file.resolve():
        raise UsageError(f"'--graph {file}' and '--html {page}' are one file", _as_svg(file))
    check_file(file, invocation().is_forced or is_page(file))


def _check_suffix(file: Path) -> None:
    if file.suffix.lower() not in (".svg", ".html", ".htm"):
        raise UsageError(f"'--graph {file}' ends in neither .svg nor .html", _as_svg(file))


def _as_svg(file: Path) -> str:
    return with_file("--graph", file, ".svg")


def _check_color(color: str) -> None:
    check_choice("column that colours a graph", color, COLORS)


def save(record: SummaryRecord, file: Path | None, color: str | None, *, is_whole: bool = False) -> str:
    """Draw a record and save it if a file is given; see `SummaryRecord.graph`."""
    if color is not None:
        _check_color(color)
    if record.flow is None:
        raise UsageError("this summary did not record the data flow", "ms.summary(model, x, flow=True)")
    shades = _shades(record, color)
    if file is not None:
        _check_suffix(file)
        if file.suffix.lower() != ".svg":
            title = summary_sheet(record).title
            lead = element("p", f"modelscope {record.command}")
            section = graph_section(record, color, is_whole=is_whole)
            page = render_page(title, lead, [section, environment(record)], [strict(record.to_dict())])
            save_page(page, file, is_forced=True)
            return page
    svg = as_file(draw(items_of(record, is_whole=is_whole), _words(record), shades))
    if file is not None:
        write_text(file, svg)
    return svg


def graph_section(record: SummaryRecord, color: str | None = None, *, is_whole: bool = False) -> Section:
    """Return the graph as a section of a page, with a choice of colours."""
    shades = _shades(record, color)
    svg = draw(items_of(record, is_whole=is_whole), _words(record), shades, is_alone=False)
    frame = element(
        "div", svg, class_="scroll wide", tabindex=0, role="region", aria_label="Graph of the model"
    )
    return Section("graph", "Graph", joined([shade_chooser(shades), frame]))


def _shades(record: SummaryRecord, color: str | None) -> list[Shade]:
    """Return the columns to colour by: `color` first, else the first measured one, else MACs."""
    every = dict(zip(COLORS, _SHADES, strict=True))
    measured = [
        key
        for key in MEASURED
        if key in every and any(every[key].value(row) is not None for row in record.layers)
    ]
    first = color or next(iter(measured), "macs")
    if first in MEASURED and first not in measured:
        raise UsageError(
            f"'{first}' was not measured", f"ms.summary(model, x, flow=True, measure=('{first}',))"
        )
    keys = [first, *(key for key in ("macs", "params", "memory", *measured) if key != first)]
    return [every[key] for key in keys]


def _some(words: Callable[[Any], str]) -> Callable[[Any], str]:
    """Wrap a formatter: empty for zero and for missing values."""
    return lambda value: words(round(value)) if value else ""


def _shade(name: str, field: str, words: Callable[[Any], str], *, adds: bool = False) -> Shade:
    return Shade(name, lambda row: getattr(row, field), lambda row: words(getattr(row, field)), words, adds)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} ms"


def _params(row: LayerShape) -> int | None:
    return None if row.call else row.params


def _params_words(row: LayerShape) -> str:
    return ("shared" if row.call else numbers.count(row.params)) if row.params else ""


# In the order of COLORS.
_SHADES = (
    _shade("MACs", "macs", _some(numbers.short), adds=True),
    _shade("FLOPs", "flops", _some(numbers.short), adds=True),
    Shade("parameters", _params, _params_words, _some(numbers.count), adds=True),
    _shade("output memory", "output_bytes", _some(numbers.memory)),
    _shade("time", "time_ms", _ms, adds=True),
    _shade("backward", "backward_ms", _ms, adds=True),
    _shade("bytes moved", "moved_bytes", _some(numbers.memory), adds=True),
    _shade("zeros", "zero_fraction", numbers.percent),
    _shade("gradient", "grad_norm", numbers.number),
)


def _words(record: SummaryRecord) -> Words:
    totals, flow = record.totals, record.flow
    assert flow is not None
    facts = (
        f"{numbers.count(totals.params)} parameters · {numbers.short(totals.macs)} MACs"
        f" · {counted(totals.layers, 'layer')}, {counted(totals.calls, 'call')}"
    )
    notes = []
    if record.failed is not None:
        notes.append(f"the forward pass raised in {record.failed}; later layers are not shown")
    if flow.unfollowed:
        notes.append("not traced: tensors from code that cannot be followed, such as NumPy or TorchScript")
    if flow.left:
        notes.append(f"not traced: values converted to Python numbers by {some(flow.left)}")
    idle = [row.name for row in record.layers if not row.executed and row.note is None]
    if idle:
        notes.append(f"not called, so not shown: {some(map(plain, idle))}")
    model, input_info = record.run.model, record.run.input
    shapes = f", input {numbers.shapes(input_info.shape)}" if input_info else ""
    return Words(f"{model.short_name} ({model.class_name}){shapes}", (facts,), tuple(notes))
