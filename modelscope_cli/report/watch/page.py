"""The page of `watch`."""

from modelscope_cli.records.naming import layer_of, some
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report import numbers
from modelscope_cli.report.page.common import figure_of
from modelscope_cli.report.page.html import NOTHING, Html, Section, element, facts, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.page.training import training_sections
from modelscope_cli.report.watch.figures import draw_activations
from modelscope_cli.report.watch.table import run_facts, watch_sheet
from modelscope_cli.report.watch.trials import trials_sheet


def sections(record: WatchRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the verdict first, then its evidence."""
    drawn = figure_of(record, embedded, "activations.png", draw_activations) if record.recorded else NOTHING
    curves = Section("steps", "Over the steps", drawn)
    judged, curves, *rows = training_sections(record, watch_sheet(record), run_facts(record), [curves])
    found = [
        judged,
        Section("trials", "Trials", _trials(record)),
        curves,
        *rows,
        Section("optimizer", "Optimizer", _optimizer(record)),
    ]
    return [section for section in found if section.body]


def _trials(record: WatchRecord) -> Html:
    if record.tried is None:
        return NOTHING
    caption = "The script run again with one thing changed each time."
    rows = sheet_section(trials_sheet(record), "trial-rows", caption) if record.trials else NOTHING
    return joined([element("p", record.tried), rows])


def _optimizer(record: WatchRecord) -> Html:
    lines = []
    for one in record.facts.optimizers:
        rates = [series for series in record.lr if series.optimizer == one.optimizer]
        groups = f"{len(rates)} groups" if len(rates) != 1 else "1 group"
        origin = f", made at {one.made}" if one.made else ""
        lines.append((one.optimizer, f"holds {one.held} parameters in {groups}{origin}"))
        for series in rates:
            first, last = numbers.number(series.value[0]), numbers.number(series.value[-1])
            words = first if first == last else f"{first} at first, {last} at the end"
            lines.append((f"learning rate, group {series.group}", words))
        if one.uncleared:
            lines.append(("gradients", f"not cleared in {one.uncleared} of {one.cycles} steps"))
    lines += [
        ("never stepped", f"{name}" + (f", made at {place}" if place else ""))
        for name, place in record.facts.idle
    ]
    outside = [row for row in record.parameters if not row.optimizer]
    if outside:
        names = some((row.name for row in outside), 12)
        layers = {layer_of(row.name) for row in outside}
        lines.append(("in no optimizer", f"{len(outside)} parameters of {len(layers)} layers: {names}"))
    elif lines:
        lines.append(("in no optimizer", "none: an optimizer holds every parameter"))
    return facts(lines)
