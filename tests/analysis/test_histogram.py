"""Histograms that merge exactly."""

import math
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.analysis.statistics.moments import N_BINS, Histogram, Wanted, grid
from modelscope_cli.analysis.statistics.reduce import reduce_on_device, reduce_tensor

ONLY = Wanted(zero=False, near_zero=False, channels=False)
LARGE = st.floats(width=32, allow_nan=False, allow_infinity=False).filter(lambda x: x == 0 or abs(x) > 1e-7)
SMALL = st.floats(-1e-30, 1e-30)


def samples(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    as_float32 = numbers.map(lambda x: torch.tensor(x).item())
    return st.lists(as_float32, min_size=1, max_size=40)


# Beside a huge number a tiny negative one is too small to tell from zero, so they do not mix.
SAMPLES = samples(LARGE) | samples(SMALL)
PARTS = st.lists(samples(LARGE), min_size=1, max_size=6) | st.lists(samples(SMALL), min_size=1, max_size=6)


def histogram(values: list[float], dtype: torch.dtype = torch.float32) -> Histogram:
    found = reduce_tensor(torch.tensor(values, dtype=dtype), None, ONLY)().histogram
    assert found is not None
    return found


def check(found: Histogram, values: list[float]) -> None:
    assert len(found.counts) <= N_BINS
    assert len(found.edges) == len(found.counts) + 1
    assert found.edges[0] <= min(values)
    assert max(values) < found.edges[-1]
    array = np.array(values, dtype=np.float64)
    # np.histogram's last bin is closed; nothing lies on that edge, as the range is covered with room
    expected = np.histogram(array, bins=np.array(found.edges))[0]
    assert list(found.counts) == list(expected)


@given(SAMPLES)
def test_it_counts_as_numpy_does_over_its_edges(values: list[float]) -> None:
    check(histogram(values), values)


@given(st.lists(st.floats(-1e300, 1e300).filter(lambda x: x == 0 or abs(x) > 1e-7), min_size=1, max_size=40))
def test_so_it_does_in_double_precision(values: list[float]) -> None:
    check(histogram(values, torch.float64), values)


@given(PARTS, st.randoms())
def test_merging_in_any_order_gives_the_whole(parts: list[list[float]], random: object) -> None:
    whole = histogram([value for part in parts for value in part])
    histograms = [histogram(part) for part in parts]
    random.shuffle(histograms)  # type: ignore[attr-defined]
    assert reduce(Histogram.merge, histograms) == whole


@given(SAMPLES)
def test_the_way_of_accelerators_gives_the_same(values: list[float]) -> None:
    assert reduce_on_device(torch.tensor(values), None, ONLY)().histogram == histogram(values)


@pytest.mark.parametrize("values", [
    [0.0],
    [-0.0, 0.0],
    [3.5] * 7,
    [-1e30, 1e30],
    [-3.4028234663852886e38, 3.4028234663852886e38],
    [1e-45, 3e-45, 0.0],
    [-1e-40, 2e-39],
    [1.0, 1.0000001],
    [-5.0, -4.0, -3.0],
    [1e30, 1e30],
    [float(i) for i in range(1000)],
    [16777215.0, 16777214.0],
    [0.1, 100.0, 1e-20],
])  # fmt: skip
def test_odd_ranges(values: list[float]) -> None:
    values = torch.tensor(values).tolist()
    check(histogram(values), values)
    assert reduce_on_device(torch.tensor(values), None, ONLY)().histogram == histogram(values)


@pytest.mark.parametrize(
    "values", [[1e308, -1e308], [1.7e308], [5e-324], [1.0, 1.0 + 2**-52], [1e300, 1e-300]]
)
def test_the_ends_of_double_precision(values: list[float]) -> None:
    found = histogram(values, torch.float64)
    assert sum(found.counts) == len(values)
    assert found.edges[0] <= min(values)


@given(SAMPLES)
def test_the_grid_is_the_finest_that_covers(values: list[float]) -> None:
    low, high = min(values), max(values)
    exponent, first = grid(low, high)
    width = 2.0**exponent
    n_bins = math.floor(high / width) - first + 1
    assert first * width <= low
    assert 1 <= n_bins <= N_BINS
    if exponent > -149 and high - low > 2.0**-46 * max(abs(low), abs(high)):
        assert n_bins > N_BINS // 2


def test_merging_a_sample_says_so() -> None:
    exact, sampled = histogram([1.0, 2.0]), Histogram(0.0, 1.0, -5, 0, (1,) * 33, is_sampled=True)
    assert exact.merge(sampled).is_sampled
    assert not exact.merge(exact).is_sampled
