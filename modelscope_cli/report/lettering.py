"""What stands around maps: a title, the numbers of the channels, a colour bar, the image they are of."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from modelscope_cli.plain_text import plain
from modelscope_cli.report import palette
from modelscope_cli.report.grids import GAP

MARGIN = 8  # pixels around everything
TITLE_SIZE, NUMBER_SIZE = 15, 11  # points
TITLE = TITLE_SIZE + 10  # pixels that a title takes
BAND = NUMBER_SIZE + 3  # and a number above a cell
BESIDE, SMALLEST = 160, 48  # long side of the image beside, at most and at least
_BAR, _BAR_HEIGHT, _BAR_WORDS = 14, 240, 68  # the colour bar, and the numbers at its right
_NARROWEST = 320  # a picture is no narrower: its title would be cut to nothing


def number_cells(
    image: Image.Image, numbers: Sequence[int], cell: tuple[int, int], columns: int, cmap: str
) -> None:
    """Write a number in the band above every cell of a mosaic; where cells are narrow, above every second or third.

    Args:
        cell: width and height of a cell in pixels, without its band.
    """
    font = _font(NUMBER_SIZE)
    step_x, step_y = cell[0] + GAP, cell[1] + BAND + GAP
    longest = max(font.getlength(str(number)) for number in numbers)
    stride = max(math.ceil((longest + 4) / step_x), 1)
    mask = Image.new("L", image.size, 0)
    pen = ImageDraw.Draw(mask)
    for place, number in enumerate(numbers):
        row, column = divmod(place, columns)
        if column % stride == 0:
            pen.text((column * step_x + 1, row * step_y), str(number), fill=255, font=font)
    _stamp(image, (0, 0), mask, cmap)


@dataclass(frozen=True, slots=True)
class Bar:
    """A colour bar: what its ends say."""

    low: str
    high: str


def page(
    body: Image.Image, title: str, cmap: str, *, picture: Tensor | None = None, bar: Bar | None = None
) -> Image.Image:
    """Put a title above a picture of maps, the image they are of at its left, and a colour bar at its right.

    Args:
        picture: `(3, h, w)` uint8.
    """
    beside = thumbnail(picture, min(BESIDE, max(body.height, SMALLEST))) if picture is not None else None
    left = beside.width + MARGIN if beside else 0
    bar_height = min(max(body.height, 2 * BAND), _BAR_HEIGHT)
    right = MARGIN + _BAR + _BAR_WORDS if bar else 0
    inner = max(left + body.width + right, _NARROWEST)
    height = max(body.height, beside.height if beside else 0, bar_height if bar else 0)
    sheet = empty(body.mode, (inner + 2 * MARGIN, height + TITLE + 2 * MARGIN), cmap)
    top = MARGIN + TITLE
    write(sheet, (MARGIN, MARGIN), title, TITLE_SIZE, inner, cmap)
    if beside is not None:
        paste_image(sheet, beside, (MARGIN, top))
    sheet.paste(body, (MARGIN + left, top))
    if bar is not None:
        _draw_bar(sheet, bar, (MARGIN + left + body.width + MARGIN, top), bar_height, cmap)
    return sheet


def _draw_bar(sheet: Image.Image, bar: Bar, place: tuple[int, int], height: int, cmap: str) -> None:
    x, y = place
    ramp = bytes((palette.N_COLOURS - 1) * (height - 1 - row) // (height - 1) for row in range(height))
    column = Image.frombytes("P", (1, height), ramp).resize((_BAR, height), Image.Resampling.NEAREST)
    column.putpalette(palette.make_palette(cmap))
    sheet.paste(column if sheet.mode == "P" else column.convert("RGB"), place)
    for words, top in ((bar.high, y), (bar.low, y + height - BAND)):
        write(sheet, (x + _BAR + 4, top), words, NUMBER_SIZE, _BAR_WORDS - 4, cmap)


def write(
    image: Image.Image,
    place: tuple[int, int],
    text: str,
    size: int,
    width: int,
    cmap: str,
    *,
    faint: bool = False,
) -> None:
    """Draw one line of text with smooth edges, on palette images too; cut in its middle where it is too long."""
    mask = Image.new("L", (max(width, 1), size + 8), 0)
    ImageDraw.Draw(mask).text((0, 0), cut(text, size, width), fill=160 if faint else 255, font=_font(size))
    _stamp(image, place, mask, cmap)


def cut(text: str, size: int, width: int) -> str:
    """Cut a text in its middle to so many pixels: names of layers differ at both ends."""
    text, font = plain(text), _font(size)
    if font.getlength(text) <= width:
        return text
    kept = len(text) - 1
    while kept > 0:
        short = f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
        if font.getlength(short) <= width:
            return short
        kept -= 1
    return ""


def _stamp(image: Image.Image, place: tuple[int, int], mask: Image.Image, cmap: str) -> None:
    """Lay letters of a gray mask over a picture."""
    if image.mode == "P":
        last = len(palette.TEXT) - 1
        letters = mask.point([palette.TEXT[value * last // 255] for value in range(256)])
        letters = Image.frombytes("P", letters.size, letters.tobytes())
        image.paste(letters, place, mask.point(lambda value: 255 if value else 0))
    else:
        image.paste(
            _rgb(palette.TEXT[-1], cmap), (*place, place[0] + mask.width, place[1] + mask.height), mask
        )


def thumbnail(picture: Tensor, side: int) -> Image.Image:
    """Return a `(3, h, w)` uint8 picture with so many pixels on its long side."""
    image = Image.fromarray(picture.permute(1, 2, 0).contiguous().numpy(), "RGB")
    factor = side / max(image.size)
    size = (max(round(image.width * factor), 1), max(round(image.height * factor), 1))
    return image.resize(size, Image.Resampling.LANCZOS)


def paste_image(sheet: Image.Image, image: Image.Image, place: tuple[int, int]) -> None:
    """Paste a photograph; on a palette picture in the few colours that suit it best."""
    if sheet.mode == "RGB":
        sheet.paste(image, place)
        return
    few = image.quantize(len(palette.IMAGE))
    colours = (few.getpalette() or [])[: 3 * len(palette.IMAGE)]
    whole: Any = sheet.getpalette()
    whole[3 * palette.IMAGE[0] : 3 * palette.IMAGE[0] + len(colours)] = colours
    sheet.putpalette(whole)
    shifted = few.point([min(index + palette.IMAGE[0], 255) for index in range(256)])
    sheet.paste(Image.frombytes("P", shifted.size, shifted.tobytes()), place)


def empty(mode: str, size: tuple[int, int], cmap: str) -> Image.Image:
    """Return a picture of the background alone."""
    if mode == "RGB":
        return Image.new("RGB", size, _rgb(palette.BACKGROUND, cmap))
    image = Image.new("P", size, palette.BACKGROUND)
    image.putpalette(palette.make_palette(cmap))
    return image


def _rgb(index: int, cmap: str) -> tuple[int, int, int]:
    red, green, blue = palette.make_palette(cmap)[3 * index : 3 * index + 3]
    return red, green, blue


@lru_cache(maxsize=8)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
