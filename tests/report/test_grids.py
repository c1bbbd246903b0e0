"""Pictures: every map is there once, and its colours are those of the colour map."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colormaps
from PIL import Image

import modelscope_cli as ms
from modelscope_cli.report import gallery, image_tiles


@pytest.fixture
def maps():
    return torch.randn(6, 5, 7, generator=torch.Generator().manual_seed(0))


def test_a_written_grid_reads_back_as_the_colour_map_of_the_values(maps, tmp_path):
    image_tiles.save_png(
        image_tiles.to_image(image_tiles.to_colours(maps, "channel")[0], "viridis"), tmp_path / "map.png"
    )
    read = np.asarray(Image.open(tmp_path / "map.png").convert("RGB"), dtype=float) / 255
    share = (maps[0] - maps[0].min()) / (maps[0].max() - maps[0].min())
    wanted = colormaps["viridis"](share.numpy())[..., :3]
    assert np.abs(read - wanted).max() < 0.02  # half a step of the palette


def test_scale_layer_makes_channels_comparable_and_scale_channel_does_not(maps):
    maps[0] *= 100
    own, shared = image_tiles.to_colours(maps, "channel"), image_tiles.to_colours(maps, "layer")
    assert own[1].max() == image_tiles.N_COLOURS - 1
    assert own[1].min() == 0
    assert shared[1].max() - shared[1].min() < 20
    assert shared[0].max() == image_tiles.N_COLOURS - 1


def test_constant_channels_and_values_that_are_not_finite_have_colours_of_their_own(maps):
    maps[0] = 3.0
    maps[1, 0, 0] = torch.nan
    maps[2, 0, 0] = torch.inf
    maps[3] = torch.nan
    colours = image_tiles.to_colours(maps, "channel")
    assert (colours[0] == image_tiles.FLAT).all()
    assert [int(colours[i, 0, 0]) for i in (1, 2)] == [image_tiles.STRANGE] * 2
    assert (colours[1:3, 1:] < image_tiles.N_COLOURS).all()
    assert (colours[3] == image_tiles.STRANGE).all()


def test_the_largest_numbers_do_not_overflow():
    colours = image_tiles.to_colours(torch.tensor([[[-3e38, 0.0, 3e38]]]), "channel")
    assert colours.flatten().tolist() == [
        0,
        round((image_tiles.N_COLOURS - 1) / 2),
        image_tiles.N_COLOURS - 1,
    ]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_a_mosaic_holds_every_map_once(n, height, width):
    cells = torch.arange(n, dtype=torch.uint8)[:, None, None].expand(n, height, width)
    laid = image_tiles.mosaic(cells)
    counts = torch.bincount(laid.flatten().long(), minlength=256)
    assert (counts[:n] == height * width).all()
    assert counts[n : image_tiles.BACKGROUND].sum() == 0


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 400))
def test_a_cell_has_the_size_that_was_asked_for(height, width, cell):
    sized = image_tiles.enlarge(torch.zeros(1, height, width, dtype=torch.uint8), cell)
    assert max(sized.shape[1:]) == cell


def test_small_maps_are_enlarged_by_a_whole_factor_and_large_ones_left():
    assert image_tiles.enlarge(torch.zeros(1, 7, 7, dtype=torch.uint8), None).shape == (1, 98, 98)
    assert image_tiles.enlarge(torch.zeros(1, 224, 100, dtype=torch.uint8), None).shape == (1, 224, 100)


@pytest.mark.parametrize("scale", ["channel", "layer"])
def test_signed_maps_have_zero_in_the_middle_of_the_colours(scale):
    maps = torch.randn(4, 6, 6, generator=torch.manual_seed(0)) + torch.tensor([0.0, 1, -1, 5])[:, None, None]
    colours = image_tiles.to_colours(maps, scale, is_signed=True).double()
    most = maps.abs().amax() if scale == "layer" else maps.flatten(1).abs().amax(1)[:, None, None]
    wanted = (maps / most + 1) / 2 * (image_tiles.N_COLOURS - 1)
    assert (colours - wanted).abs().max() <= 0.51


@pytest.mark.parametrize(("layer", "cmap"), [("conv", "RdBu_r"), ("relu", "viridis")])
def test_maps_of_both_signs_are_drawn_around_zero(layer, cmap):
    record = ms.featuremaps("squeezenet1_1", weights="none", size=64, layer=f"{layer}@1", device="cpu")
    (row,) = record.maps
    look = record.kept.look.of(row)
    assert (look.cmap, look.is_signed) == (cmap, row.min < 0)


def test_the_sign_of_one_layer_does_not_colour_another():
    record = ms.featuremaps(
        "squeezenet1_1", weights="none", size=64, layer=["conv@1", "relu@1"], device="cpu"
    )
    assert [record.kept.look.of(row).cmap for row in record.maps] == ["RdBu_r", "viridis"]


def test_the_photo_in_a_picture_has_its_own_colours(tmp_path):
    ramp = np.linspace(0, 255, 160).astype(np.uint8)
    photo = Image.fromarray(np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], 255 - ramp[:, None]), -1))
    photo.save(tmp_path / "ramp.png")
    record = ms.featuremaps(
        "squeezenet1_1", tmp_path / "ramp.png", weights="none", layer="relu@1", device="cpu", size=160
    ).save(tmp_path / "out")
    margin, above = (
        image_tiles.MARGIN,
        {record.maps[0].file: (image_tiles.TITLE, 160), record.contact_sheet: (32, 400)},
    )
    for file, (heading, side) in above.items():
        drawn = Image.open(tmp_path / "out" / file).convert("RGB")
        crop = drawn.crop((margin, margin + heading, margin + side, margin + heading + side))
        wanted = photo.resize((side, side), Image.Resampling.LANCZOS)
        assert np.abs(np.asarray(crop, float) - np.asarray(wanted, float)).max() <= 2, file


def test_a_title_is_as_wide_as_it_needs(maps):
    title = "layer1.0.conv1   Conv2d   64x64x3x3   64 filters, each at its strongest input channel"
    narrow, wide = (
        image_tiles.page(
            image_tiles.to_image(torch.zeros(16, width, dtype=torch.uint8), "viridis"), title, "viridis"
        ).convert("L")
        for width in (16, 1000)
    )
    height = image_tiles.MARGIN + image_tiles.TITLE
    words = np.asarray(wide.crop((0, 0, narrow.width, height)))
    assert (np.asarray(narrow.crop((0, 0, narrow.width, height))) == words).all()
    assert (words != words[0, 0]).any(0).sum() > len(title)


def test_grey_maps_are_counted_where_they_are_shown(tmp_path):
    conv = torch.nn.Conv2d(3, 5, 1)
    with torch.no_grad():
        conv.weight[1:4] = 0
        conv.weight[4] = torch.nan  # has a colour of its own
        record = ms.featuremaps(torch.nn.Sequential(conv), torch.rand(1, 3, 8, 8))
        some = ms.featuremaps(torch.nn.Sequential(conv), torch.rand(1, 3, 8, 8), channels=[0, 1])
    assert [one.maps[0].note for one in (record, some)] == [
        "64 values NaN or infinite, 3 of 5 constant (grey)",
        "64 values NaN or infinite, 1 of 2 constant (grey)",
    ]
    record.to_html(tmp_path / "page.html")
    assert (
        "5 of 5 channels; 64 values NaN or infinite, 3 of 5 constant (grey)"
        in (tmp_path / "page.html").read_text()
    )


@pytest.mark.parametrize("length", [4, 26, 128, 1024, 5000, 16001])
def test_a_row_of_values_is_drawn_as_a_strip_that_keeps_its_peaks(length, tmp_path):
    x = torch.zeros(1, 3, length)
    x[0, 0, length // 3], x[0, 1, -1], x[0, 2] = 5.0, -2.0, torch.linspace(0, 1, length)
    high, columns = image_tiles.raised(x[0, :, None])
    assert columns == 1
    assert high.shape[2] == (length if length <= 1024 else high.shape[2]) <= 1024
    assert high.shape[1] == max(high.shape[2] // 8, 1)
    assert (high == high[:, :1]).all()
    assert (high[0].max(), high[1].min()) == (5.0, -2.0)
    record = ms.featuremaps(torch.nn.Sequential(torch.nn.Conv1d(3, 4, 1)), x).save(tmp_path)
    assert record.maps[0].note.startswith("samples in a row")
    with Image.open(tmp_path / record.maps[0].file) as image:
        assert image.height >= 4 * max(min(length, 1024) // 8, 1) / 4
        assert image.width < 1400


@pytest.mark.parametrize("at", [None, 2, 5])
def test_the_first_output_with_nan_is_drawn_and_marked_also_where_one_of_a_stage_is(at):
    class Block(torch.nn.Sequential):
        def __init__(self):
            super().__init__(torch.nn.Conv2d(4, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())

    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), *[Block() for _ in range(8)])
    if at is not None:
        model[at][1].running_var[3] = -1.0
    record = ms.featuremaps(model, torch.rand(1, 3, 8, 8))
    assert len(record.maps) < 24
    broken = [row for row in record.maps if row.non_finite]
    assert [row.name for row in broken][:1] == [f"{at}.1"] * (at is not None)
    words = [gallery._size(maps, row) for row, maps in zip(record.maps, record.kept.maps, strict=True)]
    assert [one for one in words if one.startswith("! ")] == [f"! {row.note}" for row in broken]


def test_of_many_channels_a_tile_shows_the_one_with_nan():
    maps = torch.randn(40, 4, 4, generator=torch.Generator().manual_seed(0))
    maps[17] *= 0.01
    maps[17, 0, 0] = torch.nan
    assert gallery._liveliest(maps).isnan().any()
