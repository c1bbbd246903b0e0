"""Insertion, deletion and ROAD: the true order of an additive model is the best there is, and ties are no order."""

from statistics import fmean

import numpy as np
import pytest
import torch
from tolerance import assert_close, close
from torch import Tensor

from modelscope_cli.analysis.explaining.receipt import faithfulness
from modelscope_cli.analysis.explaining.receipt.faithfulness import (
    Faithfulness,
    area,
    impute,
    linear_imputation,
    percentile,
)
from modelscope_cli.analysis.explaining.receipt.rankings import (
    edges,
    ranking,
    share_of_ties,
    spearman,
)


def additive(weights: Tensor):
    return lambda images: (images * weights).sum((1, 2, 3))


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(3)


def gray_image(generator, side=12):
    """An image whose every pixel speaks for the class, of an additive model; its mean colour says zero of it."""
    image = torch.rand(1, 1, side, side, generator=generator) + 0.1
    weights = torch.rand(1, side, side, generator=generator) + 0.1
    return image, weights, (image * weights)[0, 0]


def test_curves_are_those_of_the_definition(generator):
    """Against a loop in NumPy that sets one pixel after the other."""
    image, weights, truth = gray_image(generator, side=7)
    exam = Faithfulness(additive(weights), image, batch=5)
    figures = exam.of(truth)
    curve = figures["curves"][0]
    order = np.argsort(-truth.numpy().ravel())
    pixels, terms = np.zeros(49), truth.numpy().ravel()
    expected = [0.0]
    for pixel in order:
        pixels[pixel] = 1
        expected.append((pixels * terms).sum() / terms.sum())
    counts = [round(49 * step / 10) for step in range(11)]
    assert curve.shares == pytest.approx([count / 49 for count in counts])
    assert curve.inserted == close(tuple(expected[count] for count in counts), scale=1.0)
    assert curve.deleted == close(tuple(1 - expected[count] for count in counts), scale=1.0)
    heights, widths = np.array([expected[count] for count in counts]), np.diff(counts) / 49
    by_trapezoids = ((heights[1:] + heights[:-1]) / 2 * widths).sum()
    assert area(curve.shares, curve.inserted) == close(by_trapezoids, scale=1.0)
    both = [area(one.shares, one.inserted) for one in figures["curves"] if one.inserted]
    assert figures["insertion"] == pytest.approx(fmean(both))


def test_a_constant_map_is_at_chance(generator):
    image, weights, truth = gray_image(generator)
    found = [Faithfulness(additive(weights), image, seed=seed).of(torch.ones(12, 12)) for seed in range(8)]
    assert {one["ties"] for one in found} == {1.0}
    assert 0.25 < fmean(one["percentile"] for one in found) < 0.75
    assert fmean(one["insertion_ratio"] for one in found) == pytest.approx(1, abs=0.05)
    best = Faithfulness(additive(weights), image).of(truth)
    assert (best["ties"], best["percentile"]) == (0.0, 1.0)
    assert best["insertion_ratio"] > 1.1
    assert best["deletion_ratio"] < 0.9


def test_a_map_of_half_zeros_removes_no_more_than_its_share(generator):
    """A threshold at a percentile removes the whole image where a ReLU left zeros."""
    scores = torch.rand(10, 10, generator=generator)
    scores[:7] = 0
    assert share_of_ties(scores) == pytest.approx(0.7)
    places = ranking(scores, 0)
    assert sorted(places.flatten().tolist()) == list(range(100))
    assert set(places[7:].flatten().tolist()) == set(range(30))
    tied = places[:7].flatten()
    assert not torch.equal(tied, tied.sort().values)  # not in raster order
    assert torch.equal(places, ranking(scores, 0))
    assert not torch.equal(places, ranking(scores, 1))


def test_no_more_than_a_batch_is_shown_at_once_and_figures_do_not_depend_on_it(generator):
    image, weights, truth = gray_image(generator)
    seen: list[int] = []

    def watched(images):
        assert not torch.is_grad_enabled()
        seen.append(len(images))
        return additive(weights)(images)

    small = Faithfulness(watched, image, batch=3).of(truth)
    assert max(seen) == 3
    curves, removals = 2 * 2 * (faithfulness.STEPS - 1), 2 * len(faithfulness.REMOVED)
    ends = 3  # the image and two baselines
    assert sum(seen) == (2 + faithfulness.N_RANDOM) * (curves + removals) + ends
    assert sum(seen) == Faithfulness.passes(1) + ends
    large = Faithfulness(watched, image, batch=64).of(truth)
    for name in ("insertion", "deletion", "road", "percentile", "insertion_edges"):
        assert small[name] == close(large[name], scale=1.0)


def test_a_baseline_the_model_likes_as_well_has_no_curve():
    image = torch.rand(1, 3, 16, 16)
    constant = Faithfulness(lambda images: torch.full((len(images),), 0.7), image).of(torch.rand(16, 16))
    assert [curve.inserted for curve in constant["curves"]] == [(), ()]
    assert constant["insertion"] is constant["percentile"] is constant["insertion_ratio"] is None
    assert constant["road"] == close(0.0)


def test_covering_is_the_correlation_of_what_is_left_with_what_is_said(generator):
    image, weights, truth = gray_image(generator, side=24)
    shown = []

    def watched(images):
        shown.append(images)
        return additive(weights)(images)

    exam = Faithfulness(watched, image, batch=7)
    found = exam.covering(truth)
    assert sum(map(len, shown)) == faithfulness.COVERED + 1
    halves, said = exam._covered
    assert torch.equal(halves[0::2], ~halves[1::2])
    expected, seen = [], []
    for first in range(0, len(halves), len(halves) // 2):  # a size of patches
        for blank in (0, 1):
            group = halves[first : first + len(halves) // 2]
            left = np.array([truth[half].sum().item() for half in group])
            values = np.array(said[2 * first + blank : 2 * (first + len(group)) : 2])
            expected += list(left - left.mean())
            seen += list(values - values.mean())
    assert found["covering"] == pytest.approx(np.corrcoef(expected, seen)[0, 1], abs=1e-4)
    again = exam.covering(-truth)
    assert again["covering"] == pytest.approx(-found["covering"], abs=1e-4)
    assert sum(map(len, shown)) == faithfulness.COVERED + 1  # no pass for another map


def spot(row, column, side=24):
    scores = torch.zeros(side, side)
    scores[row : row + 7, column : column + 7] = 1
    return scores


def test_covering_finds_the_place_and_noise_and_other_places_do_not_pass(generator):
    image = torch.rand(1, 3, 24, 24, generator=generator) + 0.5
    exam = Faithfulness(lambda images: (images * spot(3, 12)).mean((1, 2, 3)).sigmoid(), image)

    def passes(scores):
        found = exam.covering(scores)
        return found["covering"] > found["covering_chance"]

    assert exam.unmade == "the model's score of the half-covered image is about the same or higher"
    exam = Faithfulness(lambda images: (images * spot(3, 12)).mean((1, 2, 3)), image)
    assert passes(spot(3, 12))
    assert not passes(spot(15, 2))
    noise = [passes(torch.rand(24, 24, generator=generator)) for _ in range(40)]
    assert sum(noise) <= 10  # a tenth of them, and the luck of forty
    assert exam.covering(torch.ones(24, 24))["covering"] is None


def test_percentile_counts_ties_half():
    assert percentile(2.0, [1.0, 2.0, 3.0, None]) == pytest.approx(0.5)
    assert percentile(None, [1.0]) is percentile(1.0, [None]) is None


def dense_imputation(image: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The system of Rong et al. (2022), written out: one row a removed pixel, weights at the border scaled up."""
    height, width = known.shape
    places = {tuple(place): row for row, place in enumerate(np.argwhere(~known))}
    matrix, right = np.zeros((len(places), len(places))), np.zeros((len(places), len(image)))
    for (y, x), row in places.items():
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                there = (y + dy, x + dx)
                if (dy, dx) == (0, 0) or not (0 <= there[0] < height and 0 <= there[1] < width):
                    continue
                weight = 1 / 6 if 0 in (dy, dx) else 1 / 12
                matrix[row, row] += weight
                if there in places:
                    matrix[row, places[there]] -= weight
                else:
                    right[row] += weight * image[:, there[0], there[1]]
    filled = image.copy()
    filled[:, ~known] = np.linalg.solve(matrix, right).T
    return filled


@pytest.mark.parametrize("removed", [0.2, 0.5, 0.8, "a corner", "a frame"])
def test_imputation_solves_the_dense_system(removed, generator):
    image = torch.rand(1, 3, 14, 11, generator=generator)
    known = torch.rand(14, 11, generator=generator) > (removed if isinstance(removed, float) else 2)
    if removed == "a corner":
        known[6:, 4:] = True
    elif removed == "a frame":
        known[3:5, 4] = True
    expected = dense_imputation(image[0].double().numpy(), known.numpy())
    exact = linear_imputation(image.double(), known, tolerance=1e-12)[0]
    assert exact.numpy() == pytest.approx(expected, abs=1e-9)
    quick = linear_imputation(image, known)[0]
    assert quick.numpy() == pytest.approx(expected, abs=2e-3)  # the noise is 1e-2
    assert torch.equal(quick[:, known], image[0][:, known])


def test_noise_falls_on_imputed_pixels_alone(generator):
    image, known = torch.zeros(1, 3, 40, 40), torch.zeros(40, 40, dtype=torch.bool)
    known[:, :20] = True
    noisy = impute(image, known, generator)
    assert not noisy[..., :20].any()
    assert noisy[..., 20:].std().item() == pytest.approx(0.01, rel=0.1)


def test_road_of_an_additive_model_is_what_its_own_masks_say(generator):
    """Least removed less most removed, halved, at four shares, with the masks of the definition."""
    image, weights, truth = gray_image(generator)
    found = Faithfulness(additive(weights), image).of(truth)["road"]
    order = truth.flatten().argsort(descending=True)
    differences = []
    for share in (0.2, 0.4, 0.6, 0.8):
        n = round(share * 144)
        values = []
        for removed in (order[-n:], order[:n]):
            known = torch.ones(144, dtype=torch.bool)
            known[removed] = False
            filled = dense_imputation(image[0].double().numpy(), known.view(12, 12).numpy())
            values.append((filled * weights.numpy()).sum())
        differences.append((values[0] - values[1]) / 2)
    assert found == pytest.approx(fmean(differences), rel=0.05)  # its noise
    assert found > 0 > Faithfulness(additive(weights), image).of(-truth)["road"]


def test_spearman_is_scipys(generator):
    scipy = pytest.importorskip("scipy.stats")
    a, b = torch.randn(9, 9, generator=generator), torch.randn(9, 9, generator=generator)
    tied = (a * 2).round()
    for other in (b, tied, -a):
        expected = scipy.spearmanr(a.flatten().numpy(), other.flatten().numpy()).statistic
        assert spearman(a, other) == pytest.approx(expected)
    assert spearman(a, a.exp()) == pytest.approx(1.0)
    assert spearman(a, torch.ones(9, 9)) is None


def test_edges_are_where_the_image_changes_and_not_at_its_border():
    image = torch.zeros(1, 3, 9, 9)
    image[..., 5:] = 1
    found = edges(image)
    assert_close(found[:, 4:6], torch.full((9, 2), 4.0))
    found[:, 4:6] = 0
    assert not found.any()
