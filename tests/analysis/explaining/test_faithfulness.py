"""Covering: against NumPy on additive models."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from tolerance import assert_close
from torch import Tensor

from modelscope_cli.analysis.explaining.receipt import faithfulness
from modelscope_cli.analysis.explaining.receipt.faithfulness import Faithfulness
from modelscope_cli.analysis.explaining.receipt.rankings import spearman


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
    n = len(halves) // 4  # of a patch size and a baseline
    for first in range(0, len(halves), n):
        left = np.array([truth[half].sum().item() for half in halves[first : first + n]])
        values = said[first : first + n].numpy()
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


def test_the_margin_is_the_standard_error_of_the_95th_of_99_copies(generator):
    draws = np.random.default_rng(0).normal(size=(20_000, faithfulness.N_COPIES))
    measured = np.sort(draws)[:, faithfulness.N_BEATEN - 1].std()
    assert pytest.approx(measured, rel=0.1) == faithfulness._ERROR
    image, weights, truth = gray_image(generator, side=24)
    found = Faithfulness(additive(weights), image).covering(truth)
    assert 0 < found["covering_margin"] < 2 * faithfulness._ERROR  # the copies are between -1 and 1


def test_without_a_preset_the_mean_colour_is_the_images_own():
    image = torch.rand(1, 3, 8, 8) + 5
    own = Faithfulness(additive(torch.ones(3, 8, 8)), image, is_normalised=False)._baselines["mean colour"]
    assert_close(own, image.mean((2, 3), keepdim=True).expand_as(image))
    assert not Faithfulness(additive(torch.ones(3, 8, 8)), image)._baselines["mean colour"].any()


def test_spearman_is_scipys(generator):
    a, b = torch.randn(9, 9, generator=generator), torch.randn(9, 9, generator=generator)
    tied = (a * 2).round()
    for other in (b, tied, -a):
        expected = spearmanr(a.flatten().numpy(), other.flatten().numpy()).statistic
        assert spearman(a, other) == pytest.approx(expected)
    assert spearman(a, a.exp()) == pytest.approx(1.0)
    assert spearman(a, torch.ones(9, 9)) is None
