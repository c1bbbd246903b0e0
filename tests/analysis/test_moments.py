"""Merging moments gives those of all the values together, whatever the order."""

import math
from functools import reduce
from itertools import permutations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tolerance import close

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor

WANTED = Wanted(threshold=0.5)
VALUES = st.one_of(st.floats(-1e6, 1e6, width=32), st.sampled_from([0.0, math.nan, math.inf, -math.inf]))
PARTS = st.lists(st.lists(VALUES, max_size=20), min_size=1, max_size=5)


def moments(values: list[float]) -> Moments:
    return reduce_tensor(torch.tensor(values, dtype=torch.float32).reshape(-1, 1), 1, WANTED)()


@given(PARTS, st.randoms())
def test_parts_in_any_order_are_the_whole(parts: list[list[float]], random: object) -> None:
    every = np.array([value for part in parts for value in part], dtype=np.float32).astype(np.float64)
    random.shuffle(parts)  # type: ignore[attr-defined]
    merged = reduce(Moments.merge, map(moments, parts))
    finite = every[np.isfinite(every)]
    assert merged.n == finite.size
    assert merged.numel == every.size
    assert merged.n_nan == np.isnan(every).sum()
    assert merged.n_inf == np.isinf(every).sum()
    assert merged.n_zero == (finite == 0).sum()
    assert merged.n_near_zero == (np.abs(finite) < 0.5).sum()
    assert merged.alive == (bool((every != 0).any()),)
    assert merged.abs_deviation is None or len(parts) == 1
    if finite.size:
        assert (merged.low, merged.high) == (finite.min(), finite.max())
        scale = np.abs(finite).max()
        assert merged.mean == close(finite.mean(), scale=0.1 * scale)
        assert merged.std == close(finite.std(), scale=0.1 * scale)
        assert merged.rms == close(np.sqrt(np.mean(finite**2)))
        assert merged.histogram is not None
        assert sum(merged.histogram.counts) == finite.size
    else:
        assert merged.histogram is None
        assert math.isnan(merged.std)


def test_nothing_added_changes_nothing() -> None:
    some, none = moments([1.0, -2.0, 0.0]), moments([])
    for merged in (some.merge(none), none.merge(some)):
        assert (merged.mean, merged.m2, merged.n, merged.alive) == (some.mean, some.m2, 3, (True,))
        assert (merged.n_zero, merged.n_near_zero, merged.histogram) == (1, 1, some.histogram)


def test_merging_does_not_cancel_far_from_zero() -> None:
    values = (np.random.default_rng(0).normal(1e4, 1.0, 40_000)).astype(np.float32)
    merged = reduce(
        Moments.merge, (reduce_tensor(torch.from_numpy(p), None, WANTED)() for p in np.split(values, 40))
    )
    exact = values.astype(np.float64)
    assert merged.mean == close(exact.mean(), dtype=torch.float64)
    assert merged.std == close(exact.std())


def test_the_three_orders_agree() -> None:
    parts = [moments([1.0, 2.0]), moments([1e5]), moments([-3.0, 0.0, 0.0])]
    found = [reduce(Moments.merge, order) for order in permutations(parts)]
    assert len({(m.n, m.low, m.high, m.n_zero, m.histogram) for m in found}) == 1
    assert max(m.mean for m in found) == close(min(m.mean for m in found), dtype=torch.float64)


def test_channels_that_come_and_go_have_no_dead_count() -> None:
    two = Moments(1, 0.0, 0.0, 0.0, 0.0, alive=(True, False))
    three = Moments(1, 0.0, 0.0, 0.0, 0.0, alive=(True, False, True))
    assert two.merge(two).alive == (True, False)
    assert two.merge(three).alive is None


def test_huge_values_do_not_poison_an_empty_side() -> None:
    huge = Moments(1, 1e300, 0.0, 1e300, 1e300)
    assert Moments(0, 0.0, 0.0, math.inf, -math.inf).merge(huge).m2 == 0.0
