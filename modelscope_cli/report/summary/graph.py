"""The graph of a model, from a summary that recorded its dataflow."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.output_files import check_file
from modelscope_cli.paths import with_file
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.refusals import check_choice
from modelscope_cli.records.run import invocation
from modelscope_cli.records.summary import COLORS, LayerShape, SummaryRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import SUFFIXES, save_figure
from modelscope_cli.report.graph.drawing import Shade, Words, description, draw
from modelscope_cli.report.graph.items import items_of


def check_graph(file: Path | None, color: str | None) -> None:
    """Refuse early a file that cannot be written and a column that cannot colour the graph."""
    if color is not None:
        check_choice("column that colours a graph", color, COLORS)
    if file is None:
        if color is not None:
            raise UsageError("'--color' needs --graph", f"--graph model.svg --color {color}")
        return
    _check_suffix(file)
    check_file(file, invocation().is_forced)


def _check_suffix(file: Path) -> None:
    if file.suffix.lower() not in SUFFIXES:
        message = f"'--graph {file}' does not end in one of {', '.join(SUFFIXES)}"
        raise UsageError(message, with_file("--graph", file, ".svg"))


def save(record: SummaryRecord, file: Path | None, color: str | None) -> Any:
    """Draw a record, and save it if a file is given; see `SummaryRecord.graph`."""
    if color is not None:
        check_choice("column that colours a graph", color, COLORS)
    if file is not None:
        _check_suffix(file)
    figure = draw_graph(record, color)
    if file is not None:
        save_figure(figure, file)
    return figure


def draw_graph(record: SummaryRecord, color: str | None = None) -> Any:
    """Draw the calls in execution order in nested boxes, coloured by a column."""
    _check_flow(record)
    return draw(items_of(record), _words(record), _shade_of(record, color))


def graph_in_words(record: SummaryRecord) -> str:
    """Return the alternative text of the picture."""
    return description(items_of(record), _words(record), _shade_of(record, None))


def _check_flow(record: SummaryRecord) -> None:
    if record.flow is None:
        raise UsageError("this summary did not record the data flow", "ms.summary(model, x, flow=True)")


def _shade_of(record: SummaryRecord, color: str | None) -> Shade:
    """Return the column to colour by: `color`, else the time if it was measured, else MACs."""
    has_time = any(row.time_ms is not None for row in record.layers)
    if color == "time" and not has_time:
        raise UsageError("'time' was not measured", "ms.summary(model, x, flow=True, measure=('time',))")
    return dict(zip(COLORS, _SHADES, strict=True))[color or ("time" if has_time else "macs")]


def _shade(name: str, field: str, words: Callable[[Any], str]) -> Shade:
    return Shade(name, lambda row: getattr(row, field), words)


def _params(row: LayerShape) -> int | None:
    """Return the parameters of a layer, counted at its first call."""
    return None if row.call else row.params


def _whole(words: Callable[[int], str]) -> Callable[[float], str]:
    return lambda value: words(round(value))


# In the order of COLORS.
_SHADES = (
    _shade("MACs", "macs", numbers.short),
    _shade("FLOPs", "flops", numbers.short),
    Shade("parameters", _params, _whole(numbers.count)),
    _shade("output memory", "output_bytes", _whole(numbers.memory)),
    _shade("time", "time_ms", "{:.3g} ms".format),
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
    return Words(f"{model.short_name} ({model.class_name}){shapes}\n{facts}", tuple(notes))
