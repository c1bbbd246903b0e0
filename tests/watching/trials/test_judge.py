"""What counts as proof: beyond the noise, beyond half of the fall, and more predictions right."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.records.trials import A_LITTLE, BROKE, CROSS_ENTROPY, NO, OWN
from modelscope_cli.watching.trials.judge import Scale
from modelscope_cli.watching.trials.trial import Measured


def course(start, end, n=60, noise=0.0, right=None, **more):
    """Return a training whose loss falls in the first half, with a noise that alternates."""
    shares = [min(2 * i / n, 1) for i in range(n)]
    values = [
        start + (end - start) * one + noise * (-1) ** i if one else start for i, one in enumerate(shares)
    ]
    accuracies = (right,) * n
    usual = {"reach": n, "has_acted": True, "has_ended": True}
    return Measured(loss=tuple(values), cost=(None,) * n, right=accuracies, **{**usual, **more})


def scale(base, *, chance=None, has_fault=True):
    return Scale.of(base, chance, has_fault, is_by_cost=False)


FLAT = course(2.3, 2.3)


@pytest.mark.parametrize(
    ("base", "one", "is_general", "is_proved"),
    [
        (FLAT, course(2.3, 0.4), False, True),
        (FLAT, course(2.3, 0.4), True, True),
        (FLAT, course(2.3, 2.2), False, False),  # less than a tenth
        (FLAT, FLAT, False, False),
        (course(2.3, 1.7), course(2.3, 0.4), False, True),  # a third of the fall
        (course(2.3, 1.7), course(2.3, 0.4), True, False),  # a better recipe of a training that learns
        (course(2.3, 1.0), course(2.3, 0.4), False, False),  # learns by itself
        (course(2.3, 90.0), course(2.3, 0.4), True, True),  # diverges
        (course(2.3, math.nan), course(2.3, 0.4), True, True),
        (course(math.nan, math.nan), course(2.3, 0.4), False, True),  # broken from the first step on
        (FLAT, course(2.3, math.nan), False, False),
        (FLAT, course(2.3, -900.0), True, False),  # a negated loss
        (FLAT, course(2.3, -900.0), False, True),
        (course(2.3, 2.3, noise=0.9), course(2.3, 2.0, noise=0.9), False, False),  # within the noise
        (course(2.3, 2.3, right=0.1), course(2.3, 0.4, right=0.1), False, False),  # no prediction is better
        (course(2.3, 2.3, right=0.1), course(2.3, 0.4, right=0.9), False, True),
        (FLAT, course(2.3, 0.4, n=40, reach=60), False, True),  # batches left out in between
        (FLAT, course(2.3, 0.4, n=40, reach=40), False, False),  # all of the last ones left out
        (FLAT, course(2.3, 0.4, n=10, reach=60), False, False),
    ],
)
def test_proof(base, one, is_general, is_proved):
    assert scale(base).restores(one, base, is_general=is_general) is is_proved


def test_a_training_without_a_finding_must_stand_still_for_a_recipe_to_be_its_fix():
    base, one = course(2.3, 2.0), course(2.3, 0.3)
    assert scale(base).restores(one, base, is_general=True)
    assert not scale(base, has_fault=False).restores(one, base, is_general=True)


def test_the_fall_begins_at_the_cost_of_guessing():
    base, one = (
        course(50.0, 2.3),
        course(50.0, 0.5),
    )  # the first loss is high, as the inputs are not normalised
    assert not scale(base).restores(one, base, is_general=False)
    assert scale(base, chance=2.3).restores(one, base, is_general=False)


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0.01, 100))
def test_the_unit_of_the_loss_does_not_matter(start, share, unit):
    base, one = course(start, start * 0.95), course(start, start * share)
    scaled_base, scaled = (
        course(unit * start, unit * start * 0.95),
        course(unit * start, unit * start * share),
    )
    found = scale(base).restores(one, base, is_general=False)
    assert abs(0.1 - (1 - share)) < 1e-6 or found is scale(scaled_base).restores(
        scaled, scaled_base, is_general=False
    )


@given(st.floats(0, 2.3), st.floats(0, 2.3))
def test_a_lower_loss_never_proves_less(low, high):
    low, high = sorted((low, high))
    if scale(FLAT).restores(course(2.3, high), FLAT, is_general=False):
        assert scale(FLAT).restores(course(2.3, low), FLAT, is_general=False)


@pytest.mark.parametrize(
    ("one", "helps"),
    [
        (course(2.3, 2.1), A_LITTLE),
        (course(2.3, 2.3), NO),
        (course(2.3, 3.0), NO),
        (Measured(has_ended=True, error="ValueError: no"), BROKE),
        (course(2.3, 0.1, n=20, error="ValueError: no"), BROKE),
        (Measured(loss=(2.3,) * 60, has_ended=False), BROKE),
    ],
)
def test_less_than_proof(one, helps):
    assert scale(FLAT).helps(one, FLAT) == helps


def test_what_is_compared_is_called_the_loss_only_where_it_is_that_of_the_script():
    base = course(1.1, 0.56)
    for cost, measure in ((base.loss, OWN), (course(1.1, 0.01).loss, CROSS_ENTROPY)):
        one = replace(base, cost=cost)
        assert Scale.of(one, None, has_fault=True, is_by_cost=True).measure == measure
        assert Scale.of(one, None, has_fault=True, is_by_cost=False).measure == OWN


def test_predictions_tell_where_a_change_alters_the_loss():
    base = Measured(loss=(1.0,) * 60, cost=(4.7,) * 60, right=(0.5,) * 60, has_ended=True)
    one = Measured(loss=(4.0,) * 60, cost=(1.9,) * 60, right=(0.9,) * 60, has_ended=True)
    assert scale(base).predicts(one, base)
    assert not scale(base).predicts(base, one)
    assert not scale(base).predicts(base, base)
