"""The page of `summary`."""

from modelscope_cli.commands.summary.graph import graph_section
from modelscope_cli.commands.summary.table import when_of
from modelscope_cli.records.summary import LayerShape, SummaryRecord, TrainingMemory
from modelscope_cli.report import numbers
from modelscope_cli.report.page.charts import Line, line_chart
from modelscope_cli.report.page.html import Section, element, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.results import sheet_sections


def sections(record: SummaryRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the graph and the memory of a training step if they were recorded, and the table with the totals."""
    graph = [graph_section(record)] if record.flow is not None else []
    memory = [_memory_section(record, record.training)] if record.training is not None else []
    return [*memory, *graph, *sheet_sections(record, embedded)]


_MOST_LAYERS = 12


def _memory_section(record: SummaryRecord, training: TrainingMemory) -> Section:
    """Return the memory along one step, and whose it is at the peak."""
    lines = []
    for tone, phase in enumerate(("forward", "backward", "optimizer")):
        levels = [(n, level.bytes) for n, level in enumerate(training.timeline) if level.phase == phase]
        lines.append(Line(phase, [n for n, _ in levels], [n_bytes / 2**20 for _, n_bytes in levels], tone))
    labels = [level.layer or level.phase for level in training.timeline]
    chart = line_chart("Memory while each layer runs (MiB)", lines, height=240, labels=labels)
    largest = sorted(
        (row for row in record.layers if row.is_leaf and row.peak_bytes), key=_at_peak, reverse=True
    )
    shares = [
        f"{row.name} ({row.type}): {numbers.memory(n)}, {numbers.percent(n / training.peak_bytes)}"
        for row in largest[:_MOST_LAYERS]
        for n in [_at_peak(row)]
    ]
    whose = element("p", f"Layers with the most memory at the peak, {when_of(training.peak)}:")
    return Section(
        "memory",
        "Memory of a training step",
        joined([chart, whose, element("ul", *(element("li", s) for s in shares))]),
    )


def _at_peak(row: LayerShape) -> int:
    return row.peak_bytes or 0
