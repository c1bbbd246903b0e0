"""The sheets of `featuremaps --top-images` and their output folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image
from torch import Tensor

from modelscope_cli.records.featuremaps import (
    ChannelImage,
    ChannelImages,
    FeatureMap,
    FeatureMapsRecord,
    KeptCrops,
)
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import numbers
from modelscope_cli.report.image_tiles import BACKGROUND_RGB, save_png, scaled, wrapped, write, write_lines
from modelscope_cli.report.numbers import file_stems

CHANNELS_A_SHEET = 8
SIDE = 96  # pixels of an image
_GAP, _APART, _MARGIN = 6, 22, 14
_SMALL, _MIDDLE, _LARGE = 11, 13, 16  # sizes of letters
_TITLE = 28  # height of a line of the title


def draw_sheet(
    title: str, rows: Sequence[ChannelImages], k: int, crops: Mapping[ChannelImage, Image.Image]
) -> Image.Image:
    """Draw channels of one layer: for each the images with the strongest and weakest activation.

    Args:
        k: images per group.
        crops: the part of each image to show.
    """
    across = math.ceil(math.sqrt(k))
    group = (across * (SIDE + _GAP), 24 + -(-k // across) * (SIDE + 2 * _SMALL + 12))
    block = (2 * group[0] + _APART, 30 + group[1])
    n_columns = 2 if len(rows) > 1 and k <= 9 else 1
    n_rows = -(-len(rows) // n_columns)
    width = n_columns * block[0] + (n_columns - 1) * 2 * _APART
    lines = wrapped(title, _LARGE, width)
    head = _MARGIN + _TITLE * len(lines)
    size = (2 * _MARGIN + width, head + _MARGIN + n_rows * (block[1] + _APART) - _APART)
    sheet = Image.new("RGB", size, BACKGROUND_RGB)
    write_lines(sheet, (_MARGIN, _MARGIN), lines, _LARGE, _TITLE, width)
    for n, row in enumerate(rows):
        left = _MARGIN + n % n_columns * (block[0] + 2 * _APART)
        top = head + n // n_columns * (block[1] + _APART)
        write(sheet, (left, top), f"channel {row.channel}", _LARGE - 1, block[0])
        for words, images in row.groups:
            _draw_group(sheet, (left, top + 26), words, images, across, crops)
            left += group[0] + _APART
    return sheet


def _draw_group(
    sheet: Image.Image,
    place: tuple[int, int],
    words: str,
    images: Sequence[ChannelImage],
    across: int,
    crops: Mapping[ChannelImage, Image.Image],
) -> None:
    write(sheet, place, words, _MIDDLE, across * (SIDE + _GAP), faint=True)
    for n, image in enumerate(images):
        left = place[0] + n % across * (SIDE + _GAP)
        top = place[1] + 22 + n // across * (SIDE + 2 * _SMALL + 12)
        crop = crops[image]
        sheet.paste(crop, (left + (SIDE - crop.width) // 2, top + (SIDE - crop.height) // 2))
        write(sheet, (left, top + SIDE + 1), numbers.number(image.value) or str(image.value), _SMALL, SIDE)
        file = "/".join(image.image.replace("\\", "/").split("/")[-2:])  # the folder is often the class
        write(sheet, (left, top + SIDE + _SMALL + 3), file, _SMALL, SIDE, faint=True)


def save_sheets(record: FeatureMapsRecord, kept: KeptCrops, folder: Path) -> FeatureMapsRecord:
    """Write the sheets; return the record with the names of its files."""
    maps, channels = [], {key_of(row): row for row in record.channels}
    for layer, stem, cut in zip(record.maps, file_stems(record.maps), kept.read(), strict=True):
        shown = [channels[*key_of(layer), channel] for channel in layer.shown]
        crops = {image: fitted(crop) for image, crop in cut} if shown else {}
        starts = range(0, len(shown), CHANNELS_A_SHEET)
        files = (
            [f"{stem}-{n:02d}.png" for n in range(1, len(starts) + 1)] if len(starts) > 1 else [f"{stem}.png"]
        )
        for file, start in zip(files, starts, strict=False):
            rows = shown[start : start + CHANNELS_A_SHEET]
            save_png(draw_sheet(_title(layer), rows, record.top_images, crops), folder / file)
            channels |= {key_of(row): replace(row, file=file) for row in rows}
        maps.append(replace(layer, file=files[0] if shown else None))
    return record.with_changes(maps=tuple(maps), channels=tuple(channels.values()))


def fitted(crop: Tensor) -> Image.Image:
    """Scale a part of an image to `SIDE` pixels on its long side; few pixels are enlarged without interpolation."""
    image = Image.fromarray(crop.permute(1, 2, 0).contiguous().numpy(), "RGB")
    is_enlarged = max(image.size) < SIDE
    return scaled(image, SIDE, Image.Resampling.NEAREST if is_enlarged else Image.Resampling.LANCZOS)


def key_of(row: FeatureMap | ChannelImages) -> tuple[str | int, ...]:
    """Return a unique key of an output, or of a channel of one."""
    output_key = (row.name, row.call, row.output)
    return (*output_key, row.channel) if isinstance(row, ChannelImages) else output_key


def _title(layer: FeatureMap) -> str:
    return (
        f"{label_of(layer)}   {layer.type}   {len(layer.shown)} of {layer.channels} channels   {layer.note}"
    )
