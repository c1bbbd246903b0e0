"""The graph of a model, from a summary that recorded its dataflow."""

from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.graph.drawing import Words, description, draw
from modelscope_cli.report.graph.items import items_of


def draw_graph(record: SummaryRecord) -> Any:
    """Draw the calls in execution order in nested boxes, coloured by their MACs."""
    if record.flow is None:
        raise UsageError("this summary did not record the data flow", "ms.summary(model, x, flow=True)")
    return draw(items_of(record), _words(record))


def graph_in_words(record: SummaryRecord) -> str:
    """Return the alternative text of the picture."""
    return description(items_of(record), _words(record))


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
