"""The fixed bins of |x| against NumPy's."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.watching.schedule import is_recorded
from modelscope_cli.watching.step_sums import EDGES, N_BINS, count_magnitudes


@given(st.lists(st.floats(width=32), max_size=200))
def test_counts_are_numpys_and_nothing_finite_is_lost(values):
    x = torch.tensor(values, dtype=torch.float32)
    sizes = np.abs(x.numpy()[np.isfinite(x.numpy())]).astype(float)
    inside = np.histogram(sizes, bins=[*EDGES[:-1], np.nextafter(EDGES[-1], 0)])[0]
    counts = count_magnitudes(x).tolist()
    assert counts[0] == int((sizes < EDGES[0]).sum())
    assert counts[1:-1] == inside.tolist()
    assert counts[-1] == int((sizes >= EDGES[-1]).sum())
    assert sum(counts) == len(sizes)


def test_there_are_64_bins():
    assert N_BINS == len(EDGES) - 1 == 64


def test_large_tensors_give_a_scaled_sample():
    x = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0))
    counts, exact = count_magnitudes(x), torch.zeros(N_BINS + 2)
    for part in x.split(1 << 12):
        exact += count_magnitudes(part)
    assert abs(int(counts.sum()) / x.numel() - 1) < 0.01
    assert (counts - exact).abs().max() / x.numel() < 0.025  # four standard errors of 4,096 values


@given(st.integers(0, 10**5))
def test_records_come_ever_more_seldom_but_never_too_seldom(step):
    window = range(step, step + step // 6 + 2)
    assert any(is_recorded(one, None) for one in window)
    assert is_recorded(step, 5) == (step % 5 == 0)


def test_a_hundred_thousand_steps_have_few_records():
    assert sum(is_recorded(step, None) for step in range(100_000)) < 100
