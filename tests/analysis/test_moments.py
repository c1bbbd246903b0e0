"""Merging moments gives those of all the values together, whatever the order."""

import math
import random
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
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
@example([[-65.0, -1.401298464324817e-45]], random.Random(0))  # half of the second is 0 in float32
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


def test_channels_that_come_and_go_have_no_dead_count() -> None:
    two = Moments(1, 0.0, 0.0, 0.0, 0.0, alive=(True, False))
    three = Moments(1, 0.0, 0.0, 0.0, 0.0, alive=(True, False, True))
    assert two.merge(two).alive == (True, False)
    assert two.merge(three).alive is None


def test_huge_values_do_not_poison_an_empty_side() -> None:
    huge = Moments(1, 1e300, 0.0, 1e300, 1e300)
    assert Moments(0, 0.0, 0.0, math.inf, -math.inf).merge(huge).m2 == 0.0


def far(n: int, mean: float, std: float, dtype: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, std, n).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("mean", "std"), [(1e6, 1e-3), (-1e6, 1e-3), (1e6, 1.0), (1e3, 1e-3), (1e-6, 1e-9), (0, 1e-3)]
)
def test_far_from_zero_the_figures_are_numpys(dtype: type, mean: float, std: float) -> None:
    # The truth is of the numbers as they are stored: 1e6 + 1e-3 in float32 is 1e6, and its deviation 0.
    values = far(300_000, mean, std, dtype)
    parts = [torch.from_numpy(part) for part in np.array_split(values, 7)]
    exact = values.astype(np.float64)
    for order in (parts, parts[::-1]):
        merged = reduce(Moments.merge, (reduce_tensor(part, None, WANTED)() for part in order))
        # Deviations from a centre near the mean are exact; what is left is the sum of their squares.
        assert merged.std == pytest.approx(exact.std(), rel=1e-6)
        assert merged.mean == pytest.approx(exact.mean(), rel=1e-12, abs=1e-6 * exact.std())
        assert merged.rms == pytest.approx(np.sqrt(np.mean(exact**2)), rel=1e-6)


@given(
    st.lists(st.integers(1, 2000), min_size=2, max_size=6),
    st.sampled_from([(1e6, 1e-3, np.float64), (1e6, 0.5, np.float32), (-3.0, 1.0, np.float32)]),
    st.integers(0, 99),
    st.randoms(),
)
@settings(max_examples=40, deadline=None)
def test_any_tree_of_merges_gives_the_figures(
    sizes: list[int], case: tuple[float, float, type], seed: int, random: Any
) -> None:
    values = far(sum(sizes), *case, seed=seed)
    exact = values.astype(np.float64)
    parts = torch.from_numpy(values).split(sizes)
    pool = [reduce_tensor(part, None, WANTED)() for part in parts]
    while len(pool) > 1:
        random.shuffle(pool)
        pool.append(pool.pop().merge(pool.pop()))
    assert pool[0].mean == pytest.approx(exact.mean(), rel=1e-12, abs=1e-6 * exact.std())
    # Within a part deviations are added up in the precision of the values.
    assert pool[0].std == pytest.approx(exact.std(), rel=1e-5)
