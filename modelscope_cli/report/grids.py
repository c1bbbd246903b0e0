"""Pictures of feature maps: grids, strips and overlays, as palette images; what is written on them: `lettering`.

A pixel is one byte that indexes `palette`: small, quick to write, and exact under enlargement.
"""

import math
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from modelscope_cli.report import palette

GAP = 2  # pixels between cells
_OPAQUE = 0.85  # of the strongest value of an overlay
_LIGHTEST = 0.9  # of white, in the picture under it
SMALL_MAP = 96  # maps are enlarged by a whole factor to at least this many pixels
STRIP_CELL = 12  # pixels of one value of a vector
STRIP_COLUMNS = 64


def to_colours(maps: Tensor, scale: str) -> Tensor:
    """Turn `(n, H, W)` floats into palette indices, `(n, H, W)` uint8.

    Args:
        scale: `channel` spans the colours over each map's own range, `layer` over that of all maps.
    """
    maps = maps.to(torch.float32)
    low, high = maps.flatten(1).amin(1), maps.flatten(1).amax(1)
    clean, is_finite = maps, None
    if not (low.isfinite().all() and high.isfinite().all()):
        is_finite = maps.isfinite()
        clean = torch.where(is_finite, maps, 0)
        low = torch.where(is_finite, maps, math.inf).flatten(1).amin(1)
        high = torch.where(is_finite, maps, -math.inf).flatten(1).amax(1)
    is_flat = ~(high > low)
    if scale == "layer":
        low, high = low.amin().expand_as(low), high.amax().expand_as(high)
    # Halved first, so that a range from -3e38 to 3e38 does not overflow.
    span = (high / 2 - low / 2).clamp_min(1e-38)
    share = torch.mul(clean, 0.5).sub_(low[:, None, None] / 2).div_(span[:, None, None])
    colours = share.mul_(palette.N_COLOURS - 1).round_().clamp_(0, palette.N_COLOURS - 1).to(torch.uint8)
    if is_flat.any():
        colours[is_flat] = palette.FLAT
    if is_finite is not None:
        colours[~is_finite] = palette.STRANGE
    return colours


def resize(colours: Tensor, side: int) -> Tensor:
    """Scale `(n, H, W)` indices so that the long side has `side` pixels, each the nearest of the old ones."""
    step = max(colours.shape[-2:]) / side
    rows, columns = (
        (torch.arange(max(round(n / step), 1)) * step).long().clamp_max(n - 1) for n in colours.shape[-2:]
    )
    return colours[:, rows][:, :, columns]


def enlarge(colours: Tensor, cell: int | None) -> Tensor:
    """Scale `(n, H, W)` indices to `cell` pixels on the long side; small ones, without `cell`, by a whole
    factor to at least `SMALL_MAP`."""
    side = max(colours.shape[-2:])
    if cell is not None:
        return colours if cell == side else resize(colours, cell)
    factor = -(-SMALL_MAP // side)
    return colours.repeat_interleave(factor, 1).repeat_interleave(factor, 2) if factor > 1 else colours


def mosaic(cells: Tensor, columns: int | None = None, band: int = 0) -> Tensor:
    """Lay `(n, h, w)` cells out row by row, nearly square unless `columns` says otherwise; `(H, W)` uint8.

    Args:
        band: pixels to leave free above each cell, for its number.
    """
    n, height, width = cells.shape
    columns = columns_of(n, columns)
    rows = -(-n // columns)
    full = cells.new_full((rows * columns, band + height + GAP, width + GAP), palette.BACKGROUND)
    full[:n, band : band + height, :width] = cells
    laid = full.view(rows, columns, band + height + GAP, width + GAP).transpose(1, 2)
    return laid.reshape(rows * (band + height + GAP), columns * (width + GAP))[:-GAP, :-GAP]


def columns_of(n: int, columns: int | None = None) -> int:
    """Return how many columns a mosaic of `n` cells has."""
    return min(columns or math.ceil(math.sqrt(n)), n)


def strip(values: Tensor) -> Tensor:
    """Turn a vector of palette indices into small squares; `(n, h, w)` uint8."""
    return values.view(-1, 1, 1).expand(-1, STRIP_CELL, STRIP_CELL)


def overlay(
    maps: Tensor, picture: Tensor, cmap: str, cell: int | None, scale: str, band: int = 0
) -> Image.Image:
    """Lay each of `(n, H, W)` maps over a gray `(3, h, w)` uint8 picture; one RGB image without a title.

    Hue belongs to the map alone, which is as opaque as it is strong: where it is zero, only the picture is seen.
    """
    side = cell or 160
    height, width = picture.shape[-2:]
    factor = side / max(height, width)
    size = (max(round(height * factor), 1), max(round(width * factor), 1))
    under = torch.nn.functional.interpolate(
        picture[None].float(), size, mode="bilinear", antialias=True, align_corners=False
    )[0]
    smooth = torch.nn.functional.interpolate(
        torch.nan_to_num(maps.float())[None], size, mode="bilinear", align_corners=False
    )[0]
    colours = to_colours(smooth, scale)
    colours[colours == palette.FLAT] = 0
    table = torch.frombuffer(bytearray(palette.make_palette(cmap)), dtype=torch.uint8).view(256, 3)
    gray = (under * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0)[None, :, :, None]
    alpha = _strength(smooth, scale)[..., None]
    blended = (1 - alpha) * (_LIGHTEST * gray) + alpha * table[colours.long()].float()
    planes = blended.round().clamp(0, 255).to(torch.uint8)
    laid = torch.stack([mosaic(planes[..., i], band=band) for i in range(3)], -1)
    gaps = mosaic(torch.ones_like(colours), band=band) == palette.BACKGROUND
    laid[gaps] = table[palette.BACKGROUND]
    return Image.fromarray(laid.numpy(), "RGB")


def _strength(maps: Tensor, scale: str) -> Tensor:
    """Return how opaque `(n, H, W)` maps are: by the root of |value|, so that the weaker half is still seen."""
    size = maps.abs()
    peak = size.amax() if scale == "layer" else size.flatten(1).amax(1)[:, None, None]
    return _OPAQUE * (size / peak.clamp_min(1e-38)).clamp(0, 1).sqrt()


def to_image(laid: Tensor, cmap: str) -> Image.Image:
    """Make a palette image of `(H, W)` indices."""
    image = Image.frombytes("P", (laid.shape[1], laid.shape[0]), laid.contiguous().numpy().tobytes())
    image.putpalette(palette.make_palette(cmap))
    return image


def save_png(image: Image.Image, path: Path) -> None:
    """Write a PNG; the lightest compression is four times as quick and a tenth larger."""
    image.save(path, format="PNG", compress_level=1, compress_type=3)
