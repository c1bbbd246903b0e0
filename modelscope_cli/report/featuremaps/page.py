"""The page of `featuremaps`."""

from modelscope_cli.records.featuremaps import FeatureMap, FeatureMapsRecord
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import numbers
from modelscope_cli.report.featuremaps.table import featuremaps_sheet
from modelscope_cli.report.page.common import anchors, table_section
from modelscope_cli.report.page.html import NOTHING, Html, Section, element, joined
from modelscope_cli.report.page.images import EmbeddedImages


def sections(record: FeatureMapsRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return an overview, the table, and the grid of every layer with its channels."""
    sheet = featuremaps_sheet(record)
    contact = embedded.figure(
        record.contact_sheet, f"one map of each of {len(record.maps)} layers", "contact sheet"
    )
    grids = [grid for row in record.maps if (grid := _grid(row, embedded)) is not None]
    found = [
        Section("contact", "At a glance", joined([contact])),
        Section("maps", "Feature maps", element("div", *grids, class_="gallery grids") if grids else NOTHING),
        table_section(sheet, anchors(sheet, "map")),
    ]
    return [section for section in found if section.body]


def _grid(row: FeatureMap, embedded: EmbeddedImages) -> Html | None:
    channels = "; ".join(filter(None, [f"{len(row.shown)} of {row.channels} channels", row.note]))
    values = f"values from {numbers.number(row.min)} to {numbers.number(row.max)}"
    layer = f"{label_of(row)} ({row.type}, {numbers.shape(row.shape)})"
    words = f"{layer}: {channels}, from left to right and downwards; {values}"
    return embedded.figure(row.file, words, f"{layer}: {channels}")
