"""The order that puts alike channels side by side."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.commands.stats.figures import alike_together, draw_correlation, order_of
from modelscope_cli.records.stats import ActivationStats, Redundancy


@given(st.integers(0, 40), st.integers(0, 1000))
def test_every_channel_stands_in_the_order_once(n, seed):
    values = np.random.default_rng(seed).random((n, n))
    assert sorted(alike_together(values + values.T)) == list(range(n))


@pytest.mark.parametrize("seed", range(5))
def test_groups_that_were_mixed_stand_together_again(seed):
    rng = np.random.default_rng(seed)
    sizes = [3, 7, 5, 9]
    group = rng.permutation(np.repeat(range(4), sizes))
    common = rng.standard_normal((4, 500))
    series = common[group] * rng.choice([-1, 1], len(group))[:, None] + 0.3 * rng.standard_normal(
        (len(group), 500)
    )
    order = order_of(np.corrcoef(series))
    changes = np.count_nonzero(np.diff(group[order]))
    assert changes == 3


def test_ties_and_channels_that_are_all_alike_end():
    assert sorted(alike_together(np.ones((50, 50)))) == list(range(50))


def test_constant_channels_stand_last_and_are_said():
    matrix = torch.eye(6, dtype=torch.float64)
    matrix[[1, 4]] = torch.nan
    matrix[:, [1, 4]] = torch.nan
    assert order_of(matrix.numpy())[-2:] == [1, 4]
    row = ActivationStats(
        "conv", "Conv2d", 0, 0, "", (1, 6), "float32", 6, channels=6, correlation=Redundancy(0.0, 4)
    )
    figure = draw_correlation(row, matrix)
    axes, key = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        str(n) for n in order_of(matrix.numpy())
    ]
    assert axes.get_xlabel() == axes.get_ylabel() == "channel"
    assert "correlation" in key.get_ylabel()
    assert "Gray: 2 channels that never varied" in figure.texts[-1].get_text()
