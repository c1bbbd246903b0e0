"""The pictures of `featuremaps`: one grid a captured output, the contact sheet, the tensors."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.records.featuremaps import FeatureMap
from modelscope_cli.records.naming import label_of
from modelscope_cli.report import grids, numbers
from modelscope_cli.report.labels import file_stems
from modelscope_cli.report.tensor_file import write_tensors

CONTACT_SHEET = "contact_sheet.png"
TILE_CHANNELS = 9  # of a layer on the contact sheet


@dataclass(frozen=True, slots=True)
class Look:
    """How the maps are drawn.

    Attributes:
        scale: `channel` or `layer`: over what the colours span.
        cmap: a matplotlib colour map.
        cell: pixels of a map's long side; None enlarges small maps and leaves others as they are.
        picture: `(3, H, W)` uint8 to blend the maps over; None for bare maps.
    """

    scale: str
    cmap: str
    cell: int | None
    picture: Tensor | None = None


class Exhibit(Protocol):
    """One output to draw: its record, and its maps `(C, H, W)` or vector `(C,)`; None cannot be drawn."""

    @property
    def record(self) -> FeatureMap: ...
    @property
    def maps(self) -> Tensor | None: ...


def save_gallery(exhibits: Sequence[Exhibit], look: Look, folder: Path) -> tuple[FeatureMap, ...]:
    """Write a grid for every output that can be drawn, and the contact sheet; return the records with files."""
    records = []
    tiles = []
    for exhibit, stem in zip(exhibits, file_stems([exhibit.record for exhibit in exhibits]), strict=True):
        if exhibit.maps is None:
            records.append(exhibit.record)
            continue
        maps = exhibit.maps.to("cpu")
        file = f"{stem}.png"
        grids.save_png(draw(exhibit, maps, look), folder / file)
        # A vector has one value a channel, so its colours can only span the whole of it.
        scale = look.scale if maps.ndim > 1 else "layer"
        records.append(replace(exhibit.record, file=file, scale=scale))
        tiles.append((stem, tile(maps, look)))
    grids.save_png(grids.contact_sheet(tiles, look.cmap), folder / CONTACT_SHEET)
    return tuple(records)


def draw(exhibit: Exhibit, maps: Tensor, look: Look) -> Image.Image:
    """Draw the grid, strip or overlay of one output under its title line."""
    shown = maps[list(exhibit.record.shown)]
    if shown.ndim == 1:
        body = grids.to_image(grids.strip(vector_colours(shown)), look.cmap)
    elif look.picture is not None:
        body = grids.overlay(shown, look.picture, look.cmap, look.cell, look.scale)
    else:
        cells = grids.enlarge(grids.to_colours(shown, look.scale), look.cell)
        body = grids.to_image(grids.mosaic(cells), look.cmap)
    return grids.with_title(body, _title(exhibit), look.cmap)


def vector_colours(vector: Tensor) -> Tensor:
    """Turn `(C,)` floats into palette indices."""
    return grids.to_colours(vector[None, None], "layer")[0, 0]


def _title(exhibit: Exhibit) -> str:
    record = exhibit.record
    n_shown = len(record.shown)
    noun = "heads" if record.kind == "attention" else "channels"
    which = f"{n_shown} of {record.channels} {noun}" if n_shown < record.channels else f"{n_shown} {noun}"
    low, high = numbers.number(record.min) or "none", numbers.number(record.max) or "none"
    parts = [
        label_of(record),
        record.type,
        numbers.shape(record.shape),
        which,
        record.note,
        f"{low} .. {high}",
    ]
    return "   ".join(filter(None, parts))


def tile(maps: Tensor, look: Look) -> Tensor:
    """Choose what the contact sheet shows of an output: `(n, H, W)` palette indices."""
    if maps.ndim == 1:
        return grids.strip(vector_colours(maps))[None]
    return grids.to_colours(_liveliest(maps), look.scale)


def _liveliest(maps: Tensor) -> Tensor:
    """Pick the channels that vary most, in their own order."""
    spread = torch.nan_to_num(maps.float()).flatten(1).std(1, correction=0)
    return maps[spread.topk(min(TILE_CHANNELS, len(maps))).indices.sort().values]


def save_tensors(exhibits: Iterable[Exhibit], path: Path) -> None:
    """Write every captured output, all channels, under its layer's name.

    Raises:
        CannotRunError: the file cannot be written (exit 4).
    """
    tensors = {}
    for exhibit in exhibits:
        if exhibit.maps is not None:
            record = exhibit.record
            name = label_of(record)
            key = f"{name}.{record.output}" if record.output else name
            tensors[key] = exhibit.maps
    write_tensors(path, tensors)
