"""The page of `summary`."""

from collections.abc import Mapping

from modelscope_cli.records.naming import label_of, parents_of
from modelscope_cli.records.summary import SummaryRecord, TrainingMemory
from modelscope_cli.report import numbers
from modelscope_cli.report.page.common import anchors, table_section
from modelscope_cli.report.page.html import Section, element, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.summary.table import HELP, summary_sheet, training_facts, when_of


def sections(record: SummaryRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the memory of a training step if it was recorded, and the table with the totals."""
    memory = [_memory_section(record, record.training)] if record.training is not None else []
    sheet = summary_sheet(record)
    return [*memory, table_section(sheet, anchors(sheet))]


_MOST_LAYERS = 12


def _memory_section(record: SummaryRecord, training: TrainingMemory) -> Section:
    """Return whose the memory of one step is at its peak."""
    # With --depth the deepest rows that are left stand for what is inside them.
    around = {outer for row in record.layers for outer in parents_of(row.name)}
    layers = {
        f"{label_of(row)} ({row.type})": row.peak_bytes
        for row in record.layers
        if row.name and row.name not in around and row.peak_bytes
    }
    lists = {
        f"At the peak, {when_of(training.peak)}:": _shares(training.at_peak, training),
        "Layers that allocate or keep the most memory:": _shares(layers, training),
        "Ways to use less memory:": [words for key, words in training_facts(training) if key == HELP],
    }
    listed = [
        joined([element("p", title), element("ul", *(element("li", one) for one in found))])
        for title, found in lists.items()
        if found
    ]
    return Section("memory", "Memory of a training step", joined(listed))


def _shares(found: Mapping[str, int], training: TrainingMemory) -> list[str]:
    """Return the largest sizes with their shares of the peak."""
    largest = sorted(found.items(), key=lambda one: -one[1])[:_MOST_LAYERS]
    return [f"{name}: {numbers.memory(n)}, {numbers.percent(n / training.peak_bytes)}" for name, n in largest]
