"""Outputs that are copied and reduced after the step give what NumPy and each alone give."""

import numpy as np
import pytest
import torch

from modelscope_cli.watching.finite_flags import FiniteFlags
from modelscope_cli.watching.step_sums import FunctionOperation, StepSums, reduce_copies

RELU, TANH, LINEAR = (FunctionOperation(kind, 1, None) for kind in ("ReLU", "Tanh", "Linear"))


def _outputs() -> list[tuple[torch.Tensor, FunctionOperation]]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(4, 6, 5), (4, 6, 5), (8, 15), (30, 40), (2, 9, 1200), (3, 5, 30, 30)]
    drawn = [3 * torch.randn(shape, generator=generator) for shape in shapes]
    drawn[0] = drawn[0].relu()
    drawn[0][:, 2] = 0
    drawn[2][1, 3], drawn[3][0, 0], drawn[5][0, 0, 0, 0] = torch.nan, torch.inf, -torch.inf
    return list(zip(drawn, (RELU, RELU, TANH, LINEAR, TANH, LINEAR), strict=True))


def test_all_at_once_are_as_each_alone_and_as_numpy():
    together, alone = [], []
    for x, what in _outputs():
        copied, direct = StepSums(), StepSums()
        copied.add_output(x, what, x.clone())
        direct.add_output(x, what, None)
        together.append(copied)
        alone.append(direct)
    reduce_copies(together)
    for (x, _), copied, direct in zip(_outputs(), together, alone, strict=True):
        ours, theirs = copied.row()(), direct.row()()
        values = x.double().numpy()
        finite = values[np.isfinite(values)]
        assert (ours.counts, ours.saturated, ours.moments.alive) == (
            theirs.counts,
            theirs.saturated,
            theirs.moments.alive,
        )
        assert (ours.moments.n, ours.moments.n_zero) == (finite.size, int((finite == 0).sum()))
        assert (ours.moments.n_nan, ours.moments.n_inf) == (np.isnan(values).sum(), np.isinf(values).sum())
        assert ours.moments.mean == pytest.approx(finite.mean(), rel=1e-5, abs=1e-6)
        assert ours.moments.variance == pytest.approx(finite.var(), rel=1e-5)
    assert together[0].row()().moments.alive == (True, True, False, True, True, True)


def test_many_passes_of_one_layer_are_one_row():
    sums = StepSums()
    parts = [torch.randn(7, 3) for _ in range(40)]
    for x in parts:
        sums.add_output(x, LINEAR, x.clone())
        sums.add_gradient(2 * x, 2.0)
    reduce_copies([sums])
    row, whole = sums.row()(), torch.cat(parts).double()
    assert row.moments.n == sum(row.counts) == whole.numel()
    assert row.moments.mean == pytest.approx(float(whole.mean()), rel=1e-5, abs=1e-7)
    assert row.grad_squares == pytest.approx(float(whole.square().sum()), rel=1e-5)


def test_what_is_written_in_place_is_copied_again_and_large_outputs_are_not():
    flags, x = FiniteFlags(), torch.randn(8, 4)
    first = flags.copy_of(x)
    assert first is not None
    assert flags.copy_of(x) is first
    before = x.clone()
    x.relu_()
    second = flags.copy_of(x)
    assert second is not None
    assert torch.equal(first, before)
    assert torch.equal(second, before.relu())
    assert flags.copy_of(torch.zeros(1 << 15)) is None
    assert flags.copy_of(torch.zeros(8, dtype=torch.float64)) is None
    is_kept = [flags.copy_of(torch.zeros(1 << 14)) is not None for _ in range(300)]
    assert is_kept[0]
    assert not is_kept[-1]  # the memory of a step is bounded
