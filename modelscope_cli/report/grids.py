"""Pictures of feature maps: grids, strips, overlays and the contact sheet, as palette images.

A pixel is one byte that indexes `palette`: small, quick to write, and exact under enlargement.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from modelscope_cli.plain_text import plain
from modelscope_cli.report import palette

GAP = 2  # pixels between cells
MARGIN = 8  # pixels around everything
TITLE_SIZE = 15  # points
SMALL_MAP = 96  # maps are enlarged by a whole factor to at least this many pixels
STRIP_CELL = 12  # pixels of one value of a vector
STRIP_COLUMNS = 64
SHEET = (1800, 1000)  # a contact sheet is no larger than this


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


def mosaic(cells: Tensor, columns: int | None = None) -> Tensor:
    """Lay `(n, h, w)` cells out row by row, nearly square unless `columns` says otherwise; `(H, W)` uint8."""
    n, height, width = cells.shape
    columns = min(columns or math.ceil(math.sqrt(n)), n)
    rows = -(-n // columns)
    full = cells.new_full((rows * columns, height + GAP, width + GAP), palette.BACKGROUND)
    full[:n, :height, :width] = cells
    laid = full.view(rows, columns, height + GAP, width + GAP).transpose(1, 2)
    return laid.reshape(rows * (height + GAP), columns * (width + GAP))[:-GAP, :-GAP]


def strip(values: Tensor) -> Tensor:
    """Fold a vector of palette indices into lines of `STRIP_COLUMNS` small squares; `(H, W)` uint8."""
    cells = values.view(-1, 1, 1).expand(-1, STRIP_CELL, STRIP_CELL)
    return mosaic(cells, STRIP_COLUMNS)


def overlay(maps: Tensor, picture: Tensor, cmap: str, cell: int | None, scale: str) -> Image.Image:
    """Blend each of `(n, H, W)` maps over a `(3, h, w)` uint8 picture; one RGB image without a title."""
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
    # A gray picture below: hue belongs to the map alone.
    gray = (under * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)
    blended = 0.45 * gray.permute(1, 2, 0)[None] + 0.55 * table[colours.long()].float()
    planes = blended.round().clamp(0, 255).to(torch.uint8)
    background = table[palette.BACKGROUND]
    laid = torch.stack([mosaic(planes[..., i]) for i in range(3)], -1)
    gaps = mosaic(torch.ones_like(colours)) == palette.BACKGROUND
    laid[gaps] = background
    return Image.fromarray(laid.numpy(), "RGB")


def to_image(laid: Tensor, cmap: str) -> Image.Image:
    """Make a palette image of `(H, W)` indices."""
    image = Image.frombytes("P", (laid.shape[1], laid.shape[0]), laid.contiguous().numpy().tobytes())
    image.putpalette(palette.make_palette(cmap))
    return image


def with_title(body: Image.Image, title: str, cmap: str) -> Image.Image:
    """Put a margin around a picture and a line of text above it, shortened where it is too long."""
    font = ImageFont.load_default(TITLE_SIZE)
    height = TITLE_SIZE + 10
    width = max(body.width, 320) + 2 * MARGIN
    background = palette.BACKGROUND if body.mode == "P" else _rgb(palette.BACKGROUND, cmap)
    image = Image.new(body.mode, (width, body.height + height + 2 * MARGIN), background)
    if body.mode == "P":
        image.putpalette(palette.make_palette(cmap))
    _write(image, (MARGIN, MARGIN), title, font, width - 2 * MARGIN, cmap)
    image.paste(body, (MARGIN, MARGIN + height))
    return image


def contact_sheet(tiles: Sequence[tuple[str, Tensor]], cmap: str) -> Image.Image:
    """Lay out one small picture a layer with its label, all of them within `SHEET` pixels.

    Args:
        tiles: `(label, colours)` with `(n, H, W)` palette indices of a few channels.
    """
    font = ImageFont.load_default(12)
    label = 18
    columns, side = _arrange(len(tiles), label)
    rows = -(-len(tiles) // columns)
    size = (columns * (side + GAP * 4) + MARGIN * 2, rows * (side + label + GAP * 4) + MARGIN * 2)
    sheet = Image.new("P", size, palette.BACKGROUND)
    sheet.putpalette(palette.make_palette(cmap))
    for position, (text, colours) in enumerate(tiles):
        x = MARGIN + position % columns * (side + GAP * 4)
        y = MARGIN + position // columns * (side + label + GAP * 4)
        per_row = math.ceil(math.sqrt(len(colours)))
        cell = max((side + GAP) // per_row - GAP, 1)
        small = to_image(mosaic(resize(colours, cell), per_row), cmap)
        _write(sheet, (x, y), text, font, side, cmap)
        sheet.paste(small, (x, y + label))
    return sheet


def _arrange(n: int, label: int) -> tuple[int, int]:
    """Return the number of columns that makes `n` square tiles largest, and their side in pixels."""
    best = (1, 1)
    for columns in range(1, n + 1):
        rows = -(-n // columns)
        wide = (SHEET[0] - 2 * MARGIN) // columns - GAP * 4
        high = (SHEET[1] - 2 * MARGIN) // rows - GAP * 4 - label
        best = max(best, (columns, min(wide, high, 400)), key=lambda pair: (pair[1], pair[0]))
    return best[0], max(best[1], 8)


def _write(
    image: Image.Image,
    place: tuple[int, int],
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    width: int,
    cmap: str,
) -> None:
    """Draw one line of text with smooth edges, on palette images too; cut with an ellipsis at `width`."""
    text = plain(text)
    if font.getlength(text) > width:
        while text and font.getlength(text + "…") > width:
            text = text[:-1]
        text += "…"
    mask = Image.new("L", (max(width, 1), TITLE_SIZE + 8), 0)
    ImageDraw.Draw(mask).text((0, 0), text, fill=255, font=font)
    if image.mode == "P":
        letters = mask.point([palette.TEXT[value * (len(palette.TEXT) - 1) // 255] for value in range(256)])
        letters = Image.frombytes("P", letters.size, letters.tobytes())
        image.paste(letters, place, mask.point(lambda value: 255 if value else 0))
    else:
        image.paste(
            _rgb(palette.TEXT[-1], cmap), (*place, place[0] + mask.width, place[1] + mask.height), mask
        )


def _rgb(index: int, cmap: str) -> tuple[int, int, int]:
    red, green, blue = palette.make_palette(cmap)[3 * index : 3 * index + 3]
    return red, green, blue


def save_png(image: Image.Image, path: Path) -> None:
    """Write a PNG; the lightest compression is four times as quick and a tenth larger."""
    image.save(path, format="PNG", compress_level=1, compress_type=3)
