"""What stands around maps: titles, numbers of channels, the image, colour bars, the contact sheet."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from modelscope_cli.report import image_tiles
from modelscope_cli.report.gallery import Tile, contact_sheet

PICTURE = torch.zeros(3, 30, 60, dtype=torch.uint8)
PICTURE[0] = 200  # red, which the colour map does not have


def grid(n, side=96):
    cells = torch.full((n, side, side), 100, dtype=torch.uint8)
    return image_tiles.to_image(image_tiles.mosaic(cells, band=image_tiles.BAND), "viridis")


@pytest.mark.parametrize("n", [1, 36, 900])
@pytest.mark.parametrize("picture", [None, PICTURE])
def test_a_contact_sheet_fits_on_a_screen(n, picture):
    colours = torch.full((9, 28, 28), 100, dtype=torch.uint8)

    def draw(side):
        return image_tiles.to_image(
            image_tiles.mosaic(image_tiles.resize(colours, max(side // 3 - 2, 1)), 3), "viridis"
        )

    sheet = contact_sheet([Tile(f"{i:03d}_layer", "9x28x28", draw) for i in range(n)], picture)
    assert sheet.width <= 1920
    assert sheet.height <= 1080
    has_red = bool((np.asarray(sheet.convert("RGB"))[..., :2] == (200, 0)).all(-1).any())
    assert has_red == (picture is not None)


@pytest.mark.parametrize(
    "text", ["conv1", "encoder.layers.encoder_layer_11.self_attention.out_proj", "x" * 500, ""]
)
def test_a_name_is_cut_in_its_middle_to_the_room_there_is(text):
    width = 150
    short = image_tiles.cut(text, 12, width)
    assert ImageFont.load_default(12).getlength(short) <= width
    if short != text:
        start, end = short.split("…")
        assert text.startswith(start)
        assert text.endswith(end)
        assert len(start) <= len(end)


@pytest.mark.parametrize("side", [8, 20, 96])
def test_every_cell_has_its_number_where_there_is_room(side):
    bare, numbered = grid(9, side), grid(9, side)
    image_tiles.number_cells(numbered, [3, 7, 1000, 4, 5, 6, 8, 9, 10], (side, side), 3)
    changed = np.asarray(bare) != np.asarray(numbered)
    step = side + image_tiles.GAP + image_tiles.BAND
    for row in range(3):
        bands = changed[row * step : row * step + image_tiles.BAND]
        written = [
            bool(bands[:, c * (side + image_tiles.GAP) : (c + 1) * (side + image_tiles.GAP)].any())
            for c in range(3)
        ]
        assert written[0]
        assert all(written) or side < 30
        assert not changed[row * step + image_tiles.BAND : (row + 1) * step].any()  # never on a map


def test_an_overlay_shows_the_gray_image_where_a_map_is_zero_and_colour_where_it_is_strong():
    maps = torch.zeros(1, 40, 40)
    maps[0, :, 20:] = 5
    picture = torch.stack([torch.full((40, 40), value, dtype=torch.uint8) for value in (200, 100, 0)])
    pixels = np.asarray(image_tiles.overlay(maps, picture, "viridis", 40, "channel")).astype(int)
    bare, strong = pixels[20, 5], pixels[20, 35]
    assert bare.max() - bare.min() <= 1  # gray, though the picture is orange
    assert np.abs(strong - np.array([253, 231, 37])).max() < 60  # the upper end of viridis
    assert Image.fromarray(pixels.astype(np.uint8)).size == (40, 40)
