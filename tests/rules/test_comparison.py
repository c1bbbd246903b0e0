"""The comparison of the variants of a study: against scipy's binomial test, and its rate of false claims."""

import random

import pytest
from scipy.stats import binomtest

from modelscope_cli.records.train import Training
from modelscope_cli.rules.training.comparison import compare


def variant(name: str, wrong: set[int], n: int, classes: int = 2) -> Training:
    labels = tuple((label, n // classes) for label in range(classes))
    return Training(
        name, {}, 1, (), (), (), (), (), held_out_labels=labels, held_out_wrong=tuple(sorted(wrong))
    )


@pytest.mark.parametrize("both_wrong", [0, 5])
@pytest.mark.parametrize("lost", [0, 1, 4])
@pytest.mark.parametrize("gained", [*range(1, 20)])
def test_of_two_variants_one_is_best_where_the_exact_sign_test_says_so(gained, lost, both_wrong):
    shared = {*range(both_wrong)}
    better = variant("lr=0.1", shared | {*range(10, 10 + lost)}, 100)
    worse = variant("lr=0.2", shared | {*range(50, 50 + gained)}, 100)
    said = compare([worse, better])
    chance = binomtest(gained, gained + lost).pvalue
    if gained > lost and chance <= 0.05:
        assert said.startswith("best is lr=0.1")
        assert f"{gained - lost}.0 points ahead of lr=0.2, more than chance (p = {chance:.2g})" in said
    else:
        assert said.startswith("no variant is best")


@pytest.mark.parametrize("right", range(10, 41))
def test_variants_that_are_no_better_than_guessing_are_not_ranked(right):
    better, worse = variant("a", {*range(40 - right)}, 40), variant("b", {*range(40)}, 40)
    is_learnt = binomtest(right, 40, alternative="greater").pvalue <= 0.01
    assert compare([worse, better]).startswith("no variant is better than guessing (50.0 %)") != is_learnt


@pytest.mark.parametrize("n_variants", [2, 3, 6])
def test_of_equally_good_variants_one_is_called_best_in_at_most_a_twentieth_of_studies(n_variants):
    draw = random.Random(n_variants)
    n_best = 0
    for _ in range(400):
        difficulty = [draw.random() for _ in range(60)]  # images that are hard for one are hard for all
        study = [
            variant(str(v), {i for i in range(60) if draw.random() < 0.5 * difficulty[i]}, 60)
            for v in range(n_variants)
        ]
        n_best += compare(study).startswith("best is")
    assert n_best <= 400 * 0.05 + 3 * (400 * 0.05 * 0.95) ** 0.5


def test_variants_without_validation_images_are_not_compared():
    blind = [Training(name, {}, 1, (), (), (), (), ()) for name in "ab"]
    assert compare(blind) == "which of 2 variants is best is not tested: there are no validation images"
