"""Grids of feature maps, and contact sheets of one small image per layer, the input image first."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.records.featuremaps import FeatureMap
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import image_tiles, numbers
from modelscope_cli.report.image_tiles import (
    BAND,
    GAP,
    MARGIN,
    NUMBER_SIZE,
    empty,
    number_cells,
    page,
    paste_image,
    thumbnail,
    write,
)
from modelscope_cli.report.numbers import file_stems
from modelscope_cli.tensor_file import write_tensors

SHEET = (1800, 1000)  # pixels, at most
_NAME_SIZE, _LINES = 12, 32  # points; pixels under a tile's upper edge, for its name and its shape


@dataclass(frozen=True, slots=True)
class Tile:
    """One output on a contact sheet; `draw` returns its image within a square of the given side in pixels."""

    name: str
    shape: str
    draw: Callable[[int], Image.Image]


def contact_sheet(tiles: Sequence[Tile], cmap: str, input_image: Tensor | None = None) -> Image.Image:
    """Lay out one small image per layer with its name and shape, the input first, within `SHEET` pixels."""
    n = len(tiles) + (input_image is not None)
    columns, side = _arrange(n)
    step_x, step_y = side + GAP * 4, side + _LINES + GAP * 4
    bodies = [tile.draw(side) for tile in tiles]
    mode = "RGB" if any(body.mode == "RGB" for body in bodies) else "P"
    size = (columns * step_x + MARGIN * 2, -(-n // columns) * step_y + MARGIN * 2)
    sheet = empty(mode, size, cmap)
    words = [(tile.name, tile.shape) for tile in tiles]
    if input_image is not None:
        bodies.insert(0, thumbnail(input_image, side))
        words.insert(0, ("the image", f"{input_image.shape[-1]} x {input_image.shape[-2]} pixels"))
    for place, (body, (name, shape)) in enumerate(zip(bodies, words, strict=True)):
        x = MARGIN + place % columns * step_x
        y = MARGIN + place // columns * step_y
        write(sheet, (x, y), name, _NAME_SIZE, side)
        write(sheet, (x, y + _LINES // 2 - 1), shape, NUMBER_SIZE, side, faint=True)
        if input_image is not None and place == 0:
            paste_image(sheet, body, (x, y + _LINES))
        else:
            sheet.paste(body.convert(mode) if body.mode != mode else body, (x, y + _LINES))
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


@dataclass(frozen=True, slots=True)
class MapLook:
    """The style of feature maps."""

    scale: str  # `channel` or `layer`: the range of the colours
    cmap: str  # a matplotlib colour map
    cell: int | None  # pixels of a map's long side; None only enlarges small maps
    input_image: Tensor | None = None  # `(3, H, W)` uint8; None if the input was not an image
    is_overlay: bool = False  # draw the maps over the image instead of next to it

    @property
    def under(self) -> Tensor | None:
        """The image under overlays, else None."""
        return self.input_image if self.is_overlay else None


class Exhibit(Protocol):
    """One output to draw: its record, and its maps `(C, H, W)` or vector `(C,)`; None if it cannot be drawn.

    `frames`, `(C, T, H, W)`, are all those of which the maps are sheets, else None.
    """

    @property
    def record(self) -> FeatureMap: ...
    @property
    def maps(self) -> Tensor | None: ...
    @property
    def frames(self) -> Tensor | None: ...


def save_gallery(exhibits: Sequence[Exhibit], look: MapLook, folder: Path) -> tuple[FeatureMap, ...]:
    """Write a grid for every output that can be drawn, and the contact sheet; return the records with files."""
    records, tiles = [], []
    for exhibit, stem in zip(exhibits, file_stems([exhibit.record for exhibit in exhibits]), strict=True):
        record = exhibit.record
        if exhibit.maps is not None and record.shown:
            maps, file = exhibit.maps.to("cpu"), f"{stem}.png"
            image_tiles.save_png(draw(exhibit, maps, look), folder / file)
            # A vector has one value per channel, so its colours always span the layer.
            record = replace(record, file=file, scale=look.scale if maps.ndim > 1 else "layer")
            tiles.append(Tile(stem, numbers.shape(record.shape), partial(draw_tile, maps, look)))
        records.append(record)
    image_tiles.save_png(contact_sheet(tiles, look.cmap, look.input_image), folder / CONTACT_SHEET)
    return tuple(records)


def contact_sheet_of(exhibits: Sequence[Exhibit], look: MapLook) -> Callable[[], bytes]:
    """Return a function that draws the contact sheet as a PNG; it keeps only the channels that are on it."""
    tiles = []
    for exhibit, stem in zip(exhibits, file_stems([exhibit.record for exhibit in exhibits]), strict=True):
        if exhibit.maps is not None and exhibit.record.shown:
            maps = exhibit.maps.to("cpu")
            few = partial(draw_tile, _liveliest(maps) if maps.ndim > 1 else maps, look)
            tiles.append(Tile(stem, numbers.shape(exhibit.record.shape), few))
    return lambda: image_tiles.to_png(contact_sheet(tiles, look.cmap, look.input_image))


def draw(exhibit: Exhibit, maps: Tensor, look: MapLook) -> Image.Image:
    """Draw the grid, strip or overlay of one output under its title line, each channel with its number."""
    record = exhibit.record
    selected = maps[list(record.shown)]
    is_vector = selected.ndim == 1
    columns = image_tiles.columns_of(len(selected), image_tiles.STRIP_COLUMNS if is_vector else None)
    if look.under is not None and not is_vector:
        body = image_tiles.overlay(selected, look.under, look.cmap, look.cell, look.scale, BAND)
    else:
        cells = (
            image_tiles.strip(vector_colours(selected))
            if is_vector
            else image_tiles.enlarge(image_tiles.to_colours(selected, look.scale), look.cell)
        )
        body = image_tiles.to_image(image_tiles.mosaic(cells, columns, BAND), look.cmap)
    rows = -(-len(selected) // columns)
    cell = (body.width + GAP) // columns - GAP, (body.height + GAP) // rows - GAP - BAND
    number_cells(body, record.shown, cell, columns)
    low, high = (numbers.number(end) or "none" for end in (record.min, record.max))
    parts = [
        *(label_of(record), record.type, numbers.shape(record.shape), _which(record), record.note),
        f"values {low} .. {high}",
    ]
    bar = (low, high) if look.scale == "layer" or maps.ndim == 1 else ("its lowest", "its highest")
    input_image = None if is_vector else look.input_image
    return page(body, "   ".join(filter(None, parts)), look.cmap, input_image=input_image, bar=bar)


def vector_colours(vector: Tensor) -> Tensor:
    """Turn `(C,)` floats into palette indices."""
    return image_tiles.to_colours(vector[None, None], "layer")[0, 0]


def _which(record: FeatureMap) -> str:
    """Return how many channels are shown; for a selection, that they are the strongest."""
    n_shown = len(record.shown)
    noun = "heads" if record.kind == "attention" else "channels"
    words = f"{n_shown} of {record.channels} {noun}" if n_shown < record.channels else f"{n_shown} {noun}"
    is_sorted = list(record.shown) == sorted(record.shown)
    return words if is_sorted else f"{words}, in another order"


def draw_tile(maps: Tensor, look: MapLook, side: int) -> Image.Image:
    """Draw an output for the contact sheet, at most `side` pixels wide."""
    is_overlay = look.under is not None and maps.ndim > 1
    cells = _liveliest(maps) if is_overlay else tile(maps, look)
    per_row = image_tiles.columns_of(len(cells))
    each = max((side + GAP) // per_row - GAP, 1)
    if is_overlay and look.under is not None:
        return image_tiles.overlay(cells, look.under, look.cmap, each, look.scale)
    return image_tiles.to_image(image_tiles.mosaic(image_tiles.resize(cells, each), per_row), look.cmap)


def tile(maps: Tensor, look: MapLook) -> Tensor:
    """Choose the channels for the contact sheet: `(n, H, W)` palette indices."""
    if maps.ndim == 1:
        cells = image_tiles.strip(vector_colours(maps))
        return image_tiles.mosaic(cells, image_tiles.STRIP_COLUMNS)[None]
    return image_tiles.to_colours(_liveliest(maps), look.scale)


def _liveliest(maps: Tensor) -> Tensor:
    """Return the channels that vary most, in channel order."""
    spread = torch.nan_to_num(maps.float()).flatten(1).std(1, correction=0)
    return maps[spread.topk(min(TILE_CHANNELS, len(maps))).indices.sort().values]


def save_tensors(exhibits: Iterable[Exhibit], path: Path) -> None:
    """Write all channels of every captured output under its layer's name."""
    tensors = {}
    for exhibit in exhibits:
        if exhibit.maps is not None:
            record = exhibit.record
            name = label_of(record)
            key = f"{name}.{record.output}" if record.output else name
            tensors[key] = exhibit.maps if exhibit.frames is None else exhibit.frames
    write_tensors(path, tensors)
