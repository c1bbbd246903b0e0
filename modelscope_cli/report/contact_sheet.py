"""One small picture a layer on one sheet, the image first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from modelscope_cli.report.grids import GAP
from modelscope_cli.report.lettering import MARGIN, NUMBER_SIZE, empty, paste_image, thumbnail, write

SHEET = (1800, 1000)  # pixels; it is no larger than this
_NAME_SIZE, _LINES = 12, 32  # points; pixels under a tile's upper edge, for its name and its shape


@dataclass(frozen=True, slots=True)
class Tile:
    """One output on a contact sheet; `draw` gives its picture, at most so many pixels wide and high."""

    name: str
    shape: str
    draw: Callable[[int], Image.Image]


def contact_sheet(tiles: Sequence[Tile], cmap: str, picture: Tensor | None = None) -> Image.Image:
    """Lay out one small picture a layer with its name and shape, the image first, all within `SHEET` pixels."""
    n = len(tiles) + (picture is not None)
    columns, side = _arrange(n)
    step_x, step_y = side + GAP * 4, side + _LINES + GAP * 4
    bodies = [tile.draw(side) for tile in tiles]
    mode = "RGB" if any(body.mode == "RGB" for body in bodies) else "P"
    size = (columns * step_x + MARGIN * 2, -(-n // columns) * step_y + MARGIN * 2)
    sheet = empty(mode, size, cmap)
    words = [(tile.name, tile.shape) for tile in tiles]
    if picture is not None:
        bodies.insert(0, thumbnail(picture, side))
        words.insert(0, ("the image", f"{picture.shape[-1]} x {picture.shape[-2]} pixels"))
    for place, (body, (name, shape)) in enumerate(zip(bodies, words, strict=True)):
        x = MARGIN + place % columns * step_x
        y = MARGIN + place // columns * step_y
        write(sheet, (x, y), name, _NAME_SIZE, side, cmap)
        write(sheet, (x, y + _LINES // 2 - 1), shape, NUMBER_SIZE, side, cmap, faint=True)
        if picture is not None and place == 0:
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
