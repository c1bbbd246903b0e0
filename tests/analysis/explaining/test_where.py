"""Where the evidence lies and whether maps agree: against boxes tried one by one, and SciPy."""

import itertools

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tolerance import close

from modelscope_cli.analysis.explaining.where import agreement, evidence_box


def drawn_map(seed, size=(32, 48)):
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, 1, 4, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size=size, mode="bicubic")[0, 0]
    return smooth + 0.3 * torch.randn(size, generator=generator)


@pytest.mark.parametrize("seed", range(6))
def test_the_box_is_the_smallest_that_holds_half(seed):
    scores = drawn_map(seed)
    found = evidence_box(scores)
    positive = np.clip(scores.double().numpy(), 0, None)
    best = min(
        ((bottom - top) * (right - left), -inside)
        for top, bottom in itertools.combinations(range(0, 33, 2), 2)
        for left, right in itertools.combinations(range(0, 49, 3), 2)
        if (inside := positive[top:bottom, left:right].sum()) >= positive.sum() / 2
    )
    left, top, right, bottom = found.box
    assert ((bottom - top) * (right - left), positive[top:bottom, left:right].sum()) == (
        best[0],
        close(-best[1], scale=-best[1]),
    )
    assert found.share == close(best[0] / positive.size)


@pytest.mark.parametrize("side", [16, 100, 224])
def test_a_spot_is_named_by_the_ninth_it_is_in(side):
    names = [
        ["top left", "top", "top right"],
        ["left", "centre", "right"],
        ["bottom left", "bottom", "bottom right"],
    ]
    for row, column in itertools.product(range(3), range(3)):
        scores = torch.full((side, side), -1.0)
        y, x = ((2 * n + 1) * side // 6 for n in (row, column))
        scores[y, x] = 1.0
        found = evidence_box(scores)
        left, top, right, bottom = found.box
        assert found.place == names[row][column]
        assert left <= x < right
        assert top <= y < bottom
        assert found.share <= 1.3 / 256  # a cell of the grid, whose sides are whole pixels


@pytest.mark.parametrize(("width", "is_place"), [(10, True), (11, False)])
def test_a_box_of_a_third_of_the_image_is_not_a_place(width, is_place):
    scores = torch.zeros(16, 16)
    scores[:, :width] = 1.0  # half of it is in 5 and 5.5 sixteenths of the image
    assert (evidence_box(scores).place != "scattered") == is_place


@pytest.mark.parametrize("cells", [14, 28])
def test_random_maps_name_no_place(cells):
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(200, cells, cells, generator=generator)
    placed = [evidence_box(one).place != "scattered" for one in maps]
    assert np.mean(placed) <= 0.03  # 1 %, and twice the standard error of 200


def test_even_evidence_is_scattered_and_none_or_nan_has_no_box():
    assert evidence_box(torch.ones(30, 40)).place == "scattered"
    assert evidence_box(torch.ones(30, 40)).share == close(0.5)
    assert evidence_box(torch.ones(1, 1)).box == (0, 0, 1, 1)
    for nothing in (
        torch.zeros(5, 5),
        -torch.ones(5, 5),
        torch.full((5, 5), torch.nan),
        torch.full((5, 5), torch.inf),
    ):
        assert evidence_box(nothing) is None


def test_agreement_is_scipys_rank_correlation_over_the_cells_of_the_coarser_map():
    fine, coarse = drawn_map(0, (28, 28)), drawn_map(1, (7, 7))
    found = agreement({"fine": fine, "coarse": coarse, "flat": torch.ones(7, 7)})
    pooled = fine.numpy().reshape(7, 4, 7, 4).mean((1, 3))
    expected = spearmanr(pooled.flatten(), coarse.numpy().flatten()).statistic
    assert found == {"fine": close(expected), "coarse": close(expected), "flat": None}
    assert agreement({"alone": fine}) == {"alone": None}


def test_the_same_map_agrees_and_its_negative_does_not():
    one = drawn_map(2, (21, 21))
    found = agreement({"one": one, "same": one * 3, "negative": -one})
    assert found == {"one": close(0.0, scale=1.0), "same": close(0.0, scale=1.0), "negative": close(-1.0)}
