"""Tiles of images with their palette and text."""

import io
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from modelscope_cli.plain_text import plain
from modelscope_cli.report.numbers import shortened

# Indices into the palette of 256 colours.
N_COLOURS = 238
FLAT = 238  # a constant channel
STRANGE = 239  # NaN and infinities
TEXT = range(240, 256)  # background to text colour, for antialiasing
BACKGROUND = TEXT[0]

BACKGROUND_RGB = (17, 19, 24)
TEXT_RGB = (236, 238, 242)
_FLAT_RGB = (58, 61, 68)
_STRANGE_RGB = (255, 0, 170)


@lru_cache(maxsize=8)
def make_palette(cmap: str) -> bytes:
    """Return 256 RGB triples: `N_COLOURS` of the matplotlib colour map, then the special colours above."""
    from matplotlib import colormaps

    colours = colormaps[cmap].resampled(N_COLOURS)(range(N_COLOURS), bytes=True)[:, :3].tobytes()
    steps = len(TEXT) - 1
    ramp = bytes(
        round(start + (end - start) * step / steps)
        for step in range(len(TEXT))
        for start, end in zip(BACKGROUND_RGB, TEXT_RGB, strict=True)
    )
    return colours + bytes(_FLAT_RGB) + bytes(_STRANGE_RGB) + ramp


GAP = 2  # pixels between cells
_OPAQUE = 0.85  # opacity of the strongest value of an overlay
_LIGHTEST = 0.9  # brightness of white in the image under it
SMALL_MAP = 96  # maps are enlarged by an integer factor to at least this many pixels
STRIP_CELL = 12  # pixels of one value of a vector
STRIP_COLUMNS = 64
_ROW, _LONGEST = 8, 1024  # of maps of one row: width to height as they are drawn, and columns at most


def to_colours(maps: Tensor, scale: str, *, is_signed: bool = False) -> Tensor:
    """Turn `(n, H, W)` floats into palette indices, `(n, H, W)` uint8.

    Args:
        scale: `channel` scales the colours to each map, `layer` to all maps.
        is_signed: whether 0 is in the middle of the colours.
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
    if is_signed:
        high = torch.maximum(high, -low)
        low = -high
    # Halved first, so that a range from -3e38 to 3e38 does not overflow.
    span = (high / 2 - low / 2).clamp_min(1e-38)
    share = torch.mul(clean, 0.5).sub_(low[:, None, None] / 2).div_(span[:, None, None])
    colours = share.mul_(N_COLOURS - 1).round_().clamp_(0, N_COLOURS - 1).to(torch.uint8)
    if is_flat.any():
        colours[is_flat] = FLAT
    if is_finite is not None:
        colours[~is_finite] = STRANGE
    return colours


def raised(maps: Tensor) -> tuple[Tensor, int | None]:
    """Return `(n, H, W)` maps; those of one row, of a signal or of tokens, with a height that can be seen and the
    number of columns of their mosaic.

    Of a row of more than `_LONGEST` columns each column is the value of its part that is farthest from the mean.
    """
    if maps.ndim != 3 or maps.shape[1] != 1:
        return maps, None
    rows = maps[:, 0].float()
    if (times := -(-rows.shape[1] // _LONGEST)) > 1:
        apart = (rows - rows.mean(1, keepdim=True)).abs()
        places = torch.nn.functional.max_pool1d(apart, times, ceil_mode=True, return_indices=True)[1]
        rows = rows.gather(1, places)
    high = rows[:, None].expand(-1, max(rows.shape[1] // _ROW, 1), -1)
    return high, math.ceil(math.sqrt(len(rows) / _ROW))


def resize(colours: Tensor, side: int) -> Tensor:
    """Scale `(n, H, W)` indices to `side` pixels on the long side, by nearest neighbour."""
    step = max(colours.shape[-2:]) / side
    rows, columns = (
        (torch.arange(max(round(n / step), 1)) * step).long().clamp_max(n - 1) for n in colours.shape[-2:]
    )
    return colours[:, rows][:, :, columns]


def enlarge(colours: Tensor, cell: int | None) -> Tensor:
    """Scale `(n, H, W)` indices to `cell` pixels on the long side; None: small ones to `SMALL_MAP` or more."""
    side = max(colours.shape[-2:])
    if cell is not None:
        return colours if cell == side else resize(colours, cell)
    factor = -(-SMALL_MAP // side)
    return colours.repeat_interleave(factor, 1).repeat_interleave(factor, 2) if factor > 1 else colours


def mosaic(cells: Tensor, columns: int | None = None, band: int = 0) -> Tensor:
    """Arrange `(n, h, w)` cells row by row, nearly square unless `columns` is given; `(H, W)` uint8.

    Args:
        band: pixels above each cell for its number.
    """
    n, height, width = cells.shape
    columns = columns_of(n, columns)
    rows = -(-n // columns)
    full = cells.new_full((rows * columns, band + height + GAP, width + GAP), BACKGROUND)
    full[:n, band : band + height, :width] = cells
    tiles = full.view(rows, columns, band + height + GAP, width + GAP).transpose(1, 2)
    return tiles.reshape(rows * (band + height + GAP), columns * (width + GAP))[:-GAP, :-GAP]


def columns_of(n: int, columns: int | None = None) -> int:
    """Return how many columns a mosaic of `n` cells has."""
    return min(columns or math.ceil(math.sqrt(n)), n)


def strip(values: Tensor) -> Tensor:
    """Turn a vector of palette indices into small squares; `(n, h, w)` uint8."""
    return values.view(-1, 1, 1).expand(-1, STRIP_CELL, STRIP_CELL)


def overlay(
    maps: Tensor,
    input_image: Tensor,
    cmap: str,
    cell: int | None,
    scale: str,
    band: int = 0,
    *,
    is_signed: bool = False,
) -> Image.Image:
    """Overlay each of `(n, H, W)` maps on a gray `(3, h, w)` uint8 image; return one RGB image without a title.

    The map sets the hue; its opacity follows its magnitude, so that zeros show only the image.
    """
    side = cell or 160
    height, width = input_image.shape[-2:]
    factor = side / max(height, width)
    size = (max(round(height * factor), 1), max(round(width * factor), 1))
    under = torch.nn.functional.interpolate(
        input_image[None].float(), size, mode="bilinear", antialias=True, align_corners=False
    )[0]
    smooth = torch.nn.functional.interpolate(
        torch.nan_to_num(maps.float())[None], size, mode="bilinear", align_corners=False
    )[0]
    colours = to_colours(smooth, scale, is_signed=is_signed)
    colours[colours == FLAT] = 0
    table = torch.frombuffer(bytearray(make_palette(cmap)), dtype=torch.uint8).view(256, 3)
    gray = (under * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0)[None, :, :, None]
    magnitude = smooth.abs()
    peak = magnitude.amax() if scale == "layer" else magnitude.flatten(1).amax(1)[:, None, None]
    # The square root makes weak values visible
    alpha = _OPAQUE * (magnitude / peak.clamp_min(1e-38)).clamp(0, 1).sqrt()[..., None]
    blended = (1 - alpha) * (_LIGHTEST * gray) + alpha * table[colours.long()].float()
    return _mosaic_in_colour(blended.round().clamp(0, 255).to(torch.uint8), band)


def in_colour(filters: Tensor, scale: str, cell: int | None, band: int = 0) -> Image.Image:
    """Draw `(n, 3, H, W)` filters in the colours that they read, on one RGB image without a title.

    Args:
        scale: as in `to_colours`: a filter, or all of them, spread over the whole range.
    """
    shades = to_colours(filters.flatten(1, 2), scale).clamp_max(N_COLOURS - 1).float()
    values = (shades * (255 / (N_COLOURS - 1))).round().to(torch.uint8).unflatten(1, (3, -1))
    return _mosaic_in_colour(torch.stack([enlarge(values[:, i], cell) for i in range(3)], -1), band)


def _mosaic_in_colour(cells: Tensor, band: int) -> Image.Image:
    """Arrange `(n, h, w, 3)` uint8 cells; see `mosaic`."""
    laid = torch.stack([mosaic(cells[..., i], band=band) for i in range(3)], -1)
    gaps = mosaic(torch.ones_like(cells[..., 0]), band=band) == BACKGROUND
    laid[gaps] = torch.tensor(BACKGROUND_RGB, dtype=torch.uint8)
    return Image.fromarray(laid.numpy(), "RGB")


def to_image(values: Tensor, cmap: str) -> Image.Image:
    """Make a palette image of `(H, W)` indices."""
    image = Image.frombytes("P", (values.shape[1], values.shape[0]), values.contiguous().numpy().tobytes())
    image.putpalette(make_palette(cmap))
    return image


def to_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def save_png(image: Image.Image, path: Path) -> None:
    """Write a PNG; the lightest compression is four times as fast and a tenth larger."""
    image.save(path, format="PNG", compress_level=1, compress_type=3)


MARGIN = 8  # pixels around everything
TITLE_SIZE, NUMBER_SIZE = 15, 11  # points
TITLE = TITLE_SIZE + 10  # pixels of a title
BAND = NUMBER_SIZE + 3  # pixels of a number above a cell
BESIDE, SMALLEST = 160, 48  # largest and smallest long side of the image next to the maps
_BAR, _BAR_HEIGHT = 14, 240  # the colour bar
_WIDEST = 900  # pixels that an image is widened to, so that its title fits


def number_cells(image: Image.Image, numbers: Sequence[int], cell: tuple[int, int], columns: int) -> None:
    """Write a number in the band above every cell of a mosaic; above every second or third for narrow cells.

    Args:
        cell: width and height of a cell in pixels, without its band.
    """
    font = font_of(NUMBER_SIZE)
    step_x, step_y = cell[0] + GAP, cell[1] + BAND + GAP
    longest = max(font.getlength(str(number)) for number in numbers)
    stride = max(math.ceil((longest + 4) / step_x), 1)
    mask = Image.new("L", image.size, 0)
    pen = ImageDraw.Draw(mask)
    for place, number in enumerate(numbers):
        row, column = divmod(place, columns)
        if column % stride == 0:
            pen.text((column * step_x + 1, row * step_y), str(number), fill=255, font=font)
    _stamp(image, (0, 0), mask)


def page(
    body: Image.Image,
    title: str,
    cmap: str,
    *,
    input_image: Tensor | None = None,
    bar: tuple[str, str] | None = None,
) -> Image.Image:
    """Add a title above an image of maps, the input image at its left, and a colour bar at its right.

    Args:
        input_image: `(3, h, w)` uint8. `bar`: the labels of the colour bar, low and high.
    """
    side = min(BESIDE, max(body.height, SMALLEST))
    beside = thumbnail(input_image, side) if input_image is not None else None
    left = beside.width + MARGIN if beside else 0
    bar_height = min(max(body.height, 2 * BAND), _BAR_HEIGHT)
    right = MARGIN + _BAR + 4 + max(_width(label, NUMBER_SIZE) for label in bar) if bar else 0
    inner = max(left + body.width + right, min(_width(title, TITLE_SIZE), _WIDEST))
    height = max(body.height, beside.height if beside else 0, bar_height if bar else 0)
    lines = wrapped(title, TITLE_SIZE, inner)
    top = MARGIN + TITLE * len(lines)
    sheet = empty("RGB" if beside else body.mode, (inner + 2 * MARGIN, top + height + MARGIN), cmap)
    for n, line in enumerate(lines):
        write(sheet, (MARGIN, MARGIN + n * TITLE), line, TITLE_SIZE, inner)
    if beside is not None:
        sheet.paste(beside, (MARGIN, top))
    sheet.paste(body.convert(sheet.mode), (MARGIN + left, top))
    if bar is not None:
        _draw_bar(sheet, bar, (MARGIN + left + body.width + MARGIN, top), bar_height, cmap)
    return sheet


def _draw_bar(
    sheet: Image.Image, bar: tuple[str, str], place: tuple[int, int], height: int, cmap: str
) -> None:
    x, y = place
    ramp = bytes((N_COLOURS - 1) * (height - 1 - row) // (height - 1) for row in range(height))
    column = Image.frombytes("P", (1, height), ramp).resize((_BAR, height), Image.Resampling.NEAREST)
    column.putpalette(make_palette(cmap))
    sheet.paste(column if sheet.mode == "P" else column.convert("RGB"), place)
    for words, top in zip(bar, (y + height - BAND, y), strict=True):
        write(sheet, (x + _BAR + 4, top), words, NUMBER_SIZE, _width(words, NUMBER_SIZE))


def write(
    image: Image.Image, place: tuple[int, int], text: str, size: int, width: int, *, faint: bool = False
) -> None:
    """Draw one line of antialiased text, also on palette images; shortened in the middle to `width`."""
    mask = Image.new("L", (max(width, 1), size + 8), 0)
    ImageDraw.Draw(mask).text((0, 0), cut(text, size, width), fill=160 if faint else 255, font=font_of(size))
    _stamp(image, place, mask)


def _width(text: str, size: int) -> int:
    return math.ceil(font_of(size).getlength(plain(text))) + 1


def wrapped(text: str, size: int, width: int) -> list[str]:
    """Break text between words into lines of a width in pixels; a longer word has a line of its own."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _width(longer.strip(), size) <= width:
            lines[-1] = longer
        elif word:
            lines.append(word)
    return [line.strip() for line in lines]


def cut(text: str, size: int, width: int) -> str:
    """Shorten text in the middle to a width in pixels: layer names differ at both ends."""
    text = plain(text)
    cuts = (shortened(text, most) for most in range(max(len(text), 2), 1, -1))
    return next((cut for cut in cuts if font_of(size).getlength(cut) <= width), "…")


def _stamp(image: Image.Image, place: tuple[int, int], mask: Image.Image) -> None:
    """Draw a gray mask of text onto an image."""
    if image.mode == "P":
        last = len(TEXT) - 1
        letters = mask.point([TEXT[value * last // 255] for value in range(256)])
        letters = Image.frombytes("P", letters.size, letters.tobytes())
        image.paste(letters, place, mask.point(lambda value: 255 if value else 0))
    else:
        image.paste(TEXT_RGB, (*place, place[0] + mask.width, place[1] + mask.height), mask)


def thumbnail(input_image: Tensor, side: int) -> Image.Image:
    """Scale a `(3, h, w)` uint8 image to `side` pixels on its long side."""
    image = Image.fromarray(input_image.permute(1, 2, 0).contiguous().numpy(), "RGB")
    return scaled(image, side, Image.Resampling.LANCZOS)


def scaled(image: Image.Image, side: int, how: Image.Resampling) -> Image.Image:
    """Scale an image to `side` pixels on its long side."""
    factor = side / max(image.size)
    return image.resize((max(round(image.width * factor), 1), max(round(image.height * factor), 1)), how)


def empty(mode: str, size: tuple[int, int], cmap: str) -> Image.Image:
    if mode == "RGB":
        return Image.new("RGB", size, BACKGROUND_RGB)
    image = Image.new("P", size, BACKGROUND)
    image.putpalette(make_palette(cmap))
    return image


@lru_cache(maxsize=8)
def font_of(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
