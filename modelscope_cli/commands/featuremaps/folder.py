"""The folder `featuremaps` leaves behind: the sheets of `--top-images`, the record and its page."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.commands.featuremaps.pictures import CHANNELS_A_SHEET, SIDE, draw_sheet
from modelscope_cli.records.featuremaps import ChannelImage, ChannelImages, FeatureMap, FeatureMapsRecord
from modelscope_cli.records.naming import label_of
from modelscope_cli.report.grids import save_png
from modelscope_cli.report.labels import file_stems
from modelscope_cli.report.page.results import save_result

if TYPE_CHECKING:
    from PIL import Image


def save_sheets(
    record: FeatureMapsRecord,
    stage: Path,
    cut: "Callable[[FeatureMap, int], Mapping[ChannelImage, Image.Image]]",
) -> FeatureMapsRecord:
    """Write the sheets and the record; return the record with the names of its files.

    Args:
        cut: given a layer and the side in pixels, returns what to show of every image of its channels.

    Raises:
        CannotRunError: a file cannot be written (exit 4).
    """
    maps, channels = [], {key_of(row): row for row in record.channels}
    for layer, stem in zip(record.maps, file_stems(record.maps), strict=True):
        shown = [channels[*key_of(layer), channel] for channel in layer.shown]
        crops = cut(layer, SIDE) if shown else {}
        files = [f"{stem}{number}.png" for number in _numbers(len(shown))]
        for file, rows in zip(files, _pages(shown), strict=True):
            save_png(draw_sheet(_title(layer), rows, record.top_images, crops), stage / file)
            channels |= {key_of(row): replace(row, file=file) for row in rows}
        maps.append(replace(layer, file=files[0] if files else None))
    record = replace(record, maps=tuple(maps), channels=tuple(channels.values()))
    save_result(record, stage)
    return record


def key_of(row: FeatureMap | ChannelImages) -> tuple[str | int, ...]:
    """Return what tells an output, or a channel of one, from all others."""
    own = (row.name, row.call, row.output)
    return (*own, row.channel) if isinstance(row, ChannelImages) else own


def _pages(rows: Sequence[ChannelImages]) -> Iterable[Sequence[ChannelImages]]:
    return [rows[start : start + CHANNELS_A_SHEET] for start in range(0, len(rows), CHANNELS_A_SHEET)]


def _numbers(n_channels: int) -> Iterator[str]:
    """Number the sheets of a layer, where there are several."""
    n_sheets = -(-n_channels // CHANNELS_A_SHEET)
    return (f"-{n + 1:02d}" if n_sheets > 1 else "" for n in range(n_sheets))


def _title(layer: FeatureMap) -> str:
    return (
        f"{label_of(layer)}   {layer.type}   {len(layer.shown)} of {layer.channels} channels   {layer.note}"
    )
