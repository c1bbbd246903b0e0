"""Grids of feature maps, and contact sheets of one small image per layer, the input image first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.records.featuremaps import FeatureMap, FeatureMapsRecord, KeptMaps, MapLook
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import image_tiles, numbers
from modelscope_cli.report.image_tiles import (
    BAND,
    GAP,
    MARGIN,
    NUMBER_SIZE,
    number_cells,
    page,
    thumbnail,
    write,
)
from modelscope_cli.report.numbers import file_stems

SHEET = (1800, 1000)  # pixels, at most
_NAME_SIZE, _LINES = 12, 32  # points; pixels under a tile's upper edge, for its name and its shape


@dataclass(frozen=True, slots=True)
class Tile:
    """One output on a contact sheet; `draw` returns its image within a square of the given side in pixels."""

    name: str
    shape: str
    draw: Callable[[int], Image.Image]


def contact_sheet(tiles: Sequence[Tile], input_image: Tensor | None = None) -> Image.Image:
    """Lay out one small image per layer with its name and shape, the input first, within `SHEET` pixels."""
    n = len(tiles) + (input_image is not None)
    columns, side = _arrange(n)
    step_x, step_y = side + GAP * 4, side + _LINES + GAP * 4
    bodies = [tile.draw(side) for tile in tiles]
    size = (columns * step_x + MARGIN * 2, -(-n // columns) * step_y + MARGIN * 2)
    sheet = Image.new("RGB", size, image_tiles.BACKGROUND_RGB)
    words = [(tile.name, tile.shape) for tile in tiles]
    if input_image is not None:
        bodies.insert(0, thumbnail(input_image, side))
        words.insert(0, ("the image", f"{input_image.shape[-1]} x {input_image.shape[-2]} pixels"))
    for place, (body, (name, shape)) in enumerate(zip(bodies, words, strict=True)):
        x = MARGIN + place % columns * step_x
        y = MARGIN + place // columns * step_y
        write(sheet, (x, y), name, _NAME_SIZE, side)
        write(sheet, (x, y + _LINES // 2 - 1), shape, NUMBER_SIZE, side, faint=True)
        sheet.paste(body.convert("RGB"), (x, y + _LINES))
    return sheet


def _arrange(n: int) -> tuple[int, int]:
    """Return the number of columns that makes `n` square tiles largest, and their side in pixels."""
    best = (1, 1)
    for columns in range(1, n + 1):
        rows = -(-n // columns)
        wide = (SHEET[0] - 2 * MARGIN) // columns - GAP * 4
        high = (SHEET[1] - 2 * MARGIN) // rows - GAP * 4 - _LINES
        best = max(best, (columns, min(wide, high, 400)), key=lambda pair: (pair[1], pair[0]))
    return best[0], max(best[1], 8)


CONTACT_SHEET = "contact_sheet.png"
TILE_CHANNELS = 9  # of a layer on the contact sheet


def save_gallery(record: FeatureMapsRecord, kept: KeptMaps, folder: Path) -> FeatureMapsRecord:
    """Write a grid for every output that can be drawn, and the contact sheet; return the record with the files."""
    rows, look = [], kept.look
    for row, stem, maps in zip(record.maps, file_stems(record.maps), kept.maps, strict=True):
        if maps is not None and row.shown:
            file = f"{stem}.png"
            image_tiles.save_png(draw(row, maps, look.of(row)), folder / file)
            # A vector has one value per channel, so its colours always span the layer.
            scale = look.scale if maps.ndim > 1 else "layer"
            rows.append(replace(row, file=file, scale=scale))
        else:
            rows.append(row)
    image_tiles.save_png(contact_sheet_of(record, kept), folder / CONTACT_SHEET)
    return record.with_changes(maps=tuple(rows), contact_sheet=CONTACT_SHEET)


def contact_sheet_of(record: FeatureMapsRecord, kept: KeptMaps) -> Image.Image:
    """Draw one image of each output that can be drawn."""
    tiles = [
        Tile(label_of(row), _size(maps, row), partial(draw_tile, maps, kept.look.of(row)))
        for row, maps in zip(record.maps, kept.maps, strict=True)
        if maps is not None and row.shown
    ]
    return contact_sheet(tiles, kept.look.input_image)


def _size(maps: Tensor, row: FeatureMap) -> str:
    """Return the shape of an output, and how many of its channels a tile shows, if not all; else what is wrong."""
    if row.non_finite:
        return f"! {row.note}"
    is_part = maps.ndim > 1 and len(maps) > TILE_CHANNELS
    return numbers.shape(row.shape) + f", {TILE_CHANNELS} of {len(maps)}" * is_part


def draw(record: FeatureMap, maps: Tensor, look: MapLook) -> Image.Image:
    """Draw the grid, strip or overlay of one output under its title line, each channel with its number."""
    selected = maps[list(record.shown)]
    is_vector, is_coloured = selected.ndim == 1, selected.ndim == 4
    across = image_tiles.STRIP_COLUMNS if is_vector else None
    if look.under is None and not is_vector:
        selected, across = image_tiles.raised(selected)
    columns = image_tiles.columns_of(len(selected), across)
    if look.under is not None and not is_vector:
        body = image_tiles.overlay(
            selected, look.under, look.cmap, None, look.scale, BAND, is_signed=look.is_signed
        )
    elif is_coloured:
        body = image_tiles.in_colour(selected, look.scale, None, BAND)
    else:
        if is_vector:
            cells = image_tiles.strip(_vector_colours(selected, look))
        else:
            colours = image_tiles.to_colours(selected, look.scale, is_signed=look.is_signed)
            cells = image_tiles.enlarge(colours, None)
        body = image_tiles.to_image(image_tiles.mosaic(cells, columns, BAND), look.cmap)
    rows = -(-len(selected) // columns)
    cell = (body.width + GAP) // columns - GAP, (body.height + GAP) // rows - GAP - BAND
    number_cells(body, record.shown, cell, columns)
    low, high = (numbers.number(end) or "none" for end in (record.min, record.max))
    parts = [
        *(label_of(record), record.type, numbers.shape(record.shape), _which(record), record.note),
        f"values {low} .. {high}",
    ]
    if selected.shape[-1] < maps.shape[-1] and not is_vector:
        n_each = -(-maps.shape[-1] // selected.shape[-1])
        parts.append(f"each column is 1 of {n_each}, farthest from the mean")
    of_layer = look.scale == "layer" or is_vector
    bar = (low, high) if of_layer else ("map min", "map max")
    if look.is_signed:
        largest = numbers.number(max(abs(record.min or 0), abs(record.max or 0)))
        bar = (f"-{largest}", largest) if of_layer else ("-max", "+max")
    input_image = None if is_vector else look.input_image
    title = "   ".join(filter(None, parts))
    return page(body, title, look.cmap, input_image=input_image, bar=None if is_coloured else bar)


def _vector_colours(vector: Tensor, look: MapLook) -> Tensor:
    """Turn `(C,)` floats into palette indices."""
    return image_tiles.to_colours(vector[None, None], "layer", is_signed=look.is_signed)[0, 0]


def _which(record: FeatureMap) -> str:
    """Return how many channels are shown; of filters, which input channel each is of."""
    n_shown = len(record.shown)
    noun = {"attention": "heads", "filters": "filters"}.get(record.kind, "channels")
    words = f"{n_shown} of {record.channels} {noun}" if n_shown < record.channels else f"{n_shown} {noun}"
    if record.kind == "filters" and record.shape[1] not in (1, 3):
        words += ", each at its strongest input channel"
    is_sorted = list(record.shown) == sorted(record.shown)
    return words if is_sorted else f"{words}, in a different order"


def draw_tile(maps: Tensor, look: MapLook, side: int) -> Image.Image:
    """Draw an output for the contact sheet, at most `side` pixels wide."""
    is_overlay = look.under is not None and maps.ndim > 1
    is_raw = is_overlay or maps.ndim == 4
    cells, most = (_liveliest(maps), None) if is_raw else tile(maps, look)
    per_row = image_tiles.columns_of(len(cells), most)
    each = max((side + GAP) // per_row - GAP, 1)
    if is_overlay and look.under is not None:
        return image_tiles.overlay(cells, look.under, look.cmap, each, look.scale, is_signed=look.is_signed)
    if is_raw:
        return image_tiles.in_colour(cells, look.scale, each)
    return image_tiles.to_image(image_tiles.mosaic(image_tiles.resize(cells, each), per_row), look.cmap)


def tile(maps: Tensor, look: MapLook) -> tuple[Tensor, int | None]:
    """Choose the channels for the contact sheet: `(n, H, W)` palette indices, and in how many columns."""
    if maps.ndim == 1:
        cells = image_tiles.strip(_vector_colours(maps, look))
        return image_tiles.mosaic(cells, image_tiles.STRIP_COLUMNS)[None], None
    liveliest, most = image_tiles.raised(_liveliest(maps))
    return image_tiles.to_colours(liveliest, look.scale, is_signed=look.is_signed), most


def _liveliest(maps: Tensor) -> Tensor:
    """Return the channels that vary most, those with NaN or infinite values first, in channel order."""
    spread = torch.nan_to_num(maps.float()).flatten(1).std(1, correction=0)
    n_broken = (~maps.isfinite()).flatten(1).sum(1)
    spread[n_broken > n_broken.min()] = torch.inf
    return maps[spread.topk(min(TILE_CHANNELS, len(maps))).indices.sort().values]


def tensors_of(record: FeatureMapsRecord, kept: KeptMaps) -> dict[str, Tensor]:
    """Return all channels of every output under its layer's name."""
    tensors = {}
    for row, maps in zip(record.maps, kept.maps, strict=True):
        if maps is not None:
            name = label_of(row)
            key = f"{name}.{row.output}" if row.output else name
            tensors[key] = maps
    return tensors
