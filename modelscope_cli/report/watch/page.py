"""The page of `watch`."""

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.page.common import figure_of
from modelscope_cli.report.page.html import NOTHING, Html, Section, element, joined
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
    found = [judged, Section("trials", "Trials", _trials(record)), curves, *rows]
    return [section for section in found if section.body]


def _trials(record: WatchRecord) -> Html:
    if record.tried is None:
        return NOTHING
    caption = "The script, run again with one change each time."
    rows = sheet_section(trials_sheet(record), "trial-rows", caption) if record.trials else NOTHING
    return joined([element("p", record.tried), rows])
