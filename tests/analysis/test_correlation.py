"""Correlation between channels against NumPy, streamed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import close
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import Comoments


def mixed(n: int, n_channels: int, mean: float, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(n_channels, n_channels, generator=generator)
    return torch.randn(n, 3, 4, n_channels, generator=generator) @ mix + mean


def numpy_says(x: Tensor, dim: int) -> np.ndarray:
    rows = x.double().movedim(dim, 0).flatten(1).numpy()
    with np.errstate(invalid="ignore"):
        return np.corrcoef(rows[:, np.isfinite(rows).all(0)])


def streamed(parts: tuple[Tensor, ...], dim: int) -> Tensor:
    comoments = Comoments()
    for i, part in enumerate(parts):
        comoments.add(part, dim)
        if i % 2:
            comoments.settle()
    comoments.settle()
    return comoments.correlation()


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6).filter(sum),
    st.sampled_from([0.0, -3.0, 1e4]),
    st.sampled_from([1, 3]),
    st.integers(0, 99),
)
def test_batches_of_any_size_give_numpys_matrix(sizes: list[int], mean: float, dim: int, seed: int) -> None:
    x = mixed(sum(sizes), 5, mean, seed)
    x = x.movedim(3, dim)
    assert streamed(x.split(sizes), dim).numpy() == close(numpy_says(x, dim), dtype=torch.float64, scale=1)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1e4 / 3])
@pytest.mark.parametrize("first_is_broken", [False, True])
def test_a_channel_that_never_varies_has_no_correlation(constant: float, first_is_broken: bool) -> None:
    x = mixed(9, 4, 2.0)
    x[..., 2] = constant
    if first_is_broken:
        x[0, 0, 0, 1] = torch.nan
    found = streamed(x.split(2), 3)
    is_nan = found.isnan()
    assert is_nan[2].all()
    assert is_nan[:, 2].all()
    assert is_nan.sum() == 7
    others = np.ix_([0, 1, 3], [0, 1, 3])
    assert found.numpy()[others] == close(numpy_says(x, 3)[others], dtype=torch.float64, scale=1)


def test_half_precision_and_integers() -> None:
    for x in (mixed(6, 3, 1.0).half(), (mixed(6, 3, 1.0) * 10).int(), mixed(6, 3, 1.0) > 0):
        assert streamed((x,), 3).numpy() == close(numpy_says(x, 3), dtype=torch.float64, scale=1)
