"""The figures of `summary`: the graph of the model, and the memory of a training step."""

from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.canvas import ABOVE, ACCENT, GREEN, LINE, new_figure, tidy
from modelscope_cli.report.graph.drawing import description, draw
from modelscope_cli.report.graph.items import items_of

_MOST_NAMES = 12


def draw_memory(record: SummaryRecord) -> Any:
    """Draw the highest memory of a training step while each layer runs, forward, backward and optimizer."""
    training = record.training
    if training is None:
        raise UsageError("the memory of a step is drawn only with --train", "--train")
    figure = new_figure(11.0, 4.6, f"{record.run.model.heading}: memory of a training step")
    axes = figure.subplots()
    for phase, colour in (("forward", LINE), ("backward", ACCENT), ("optimizer", GREEN)):
        levels = [
            (n, level.bytes / 2**20) for n, level in enumerate(training.timeline) if level.phase == phase
        ]
        axes.plot(*zip(*levels, strict=True), "-", marker=".", ms=3, lw=1.4, color=colour, label=phase)
    stride = -(-len(training.timeline) // _MOST_NAMES)
    named = range(0, len(training.timeline), stride)
    names = [numbers.shortened(training.timeline[n].layer or training.timeline[n].phase, 20) for n in named]
    axes.set_xticks(named, names, rotation=30, ha="right", fontsize=8)
    peak = f"peak {numbers.memory(training.peak_bytes)}"
    axes.axhline(training.peak_bytes / 2**20, ls=":", lw=0.9, color=LINE, label=peak)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("MiB")
    tidy(axes)
    axes.legend(**ABOVE, ncols=4)
    return figure


def draw_graph(record: SummaryRecord) -> Any:
    """Draw the calls in execution order in nested boxes, coloured by their MACs."""
    if record.flow is None:
        raise UsageError("this summary did not record the data flow", "ms.summary(model, x, flow=True)")
    return draw(items_of(record), *_words(record))


def graph_in_words(record: SummaryRecord) -> str:
    """Return the alternative text of the picture."""
    return description(items_of(record), *_words(record))


def _words(record: SummaryRecord) -> tuple[str, list[str]]:
    """Return the title of the picture, and the notes below it."""
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
    return f"{model.short_name} ({model.class_name}){shapes}\n{facts}", notes
