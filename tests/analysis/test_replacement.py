"""What is put in a layer's place, against NumPy and by hand."""

import numpy as np
import pytest
import torch
from torch import Tensor

from modelscope_cli.analysis.ablation.ablating import replace_output, replaced


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_zero_is_zero_even_of_nan() -> None:
    assert torch.equal(replaced(torch.full((2, 3, 4), torch.nan), 1, "zero", 0), torch.zeros(2, 3, 4))


@pytest.mark.parametrize(("shape", "dim", "axes"), [
    ((2, 3, 4, 5), 1, (2, 3)),
    ((2, 4, 5, 3), 3, (1, 2)),
    ((2, 7, 3), 2, (1,)),
    ((2, 3), 1, (1,)),
    ((2, 3, 1, 1), 1, (1,)),
])  # fmt: skip
def test_mean_and_shuffle_against_numpy(shape: tuple[int, ...], dim: int, axes: tuple[int, ...]) -> None:
    x = noise(*shape)
    mean = replaced(x, dim, "mean", 0)
    truth = np.broadcast_to(x.numpy().astype(np.float64).mean(axes, keepdims=True), shape)
    np.testing.assert_allclose(mean, truth, rtol=1e-5, atol=1e-6)
    assert mean.is_contiguous()  # an in-place layer may follow

    shuffled = replaced(x, dim, "shuffle", 3)
    flat, was = (np.moveaxis(t.numpy(), axes, range(-len(axes), 0)) for t in (shuffled, x))
    n = int(np.prod([shape[axis] for axis in axes]))
    flat, was = flat.reshape(-1, n), was.reshape(-1, n)
    order = [was[0].tolist().index(value) for value in flat[0]]
    assert sorted(order) == list(range(n))
    np.testing.assert_array_equal(flat, was[:, order])  # one order for all channels and images
    assert torch.equal(shuffled, replaced(x, dim, "shuffle", 3))
    assert n < 8 or not torch.equal(shuffled, replaced(x, dim, "shuffle", 4))


@pytest.mark.parametrize("how", ["zero", "mean", "shuffle"])
@pytest.mark.parametrize("dim", [1, 3])
def test_one_channel_leaves_the_others(how: str, dim: int) -> None:
    x = noise(2, 4, 5, 4)
    whole, one = replaced(x, dim, how, 0), replaced(x, dim, how, 0, channel=2)
    assert torch.equal(one.select(dim, 2), whole.select(dim, 2))
    others = [0, 1, 3]
    assert torch.equal(one.index_select(dim, torch.tensor(others)), x.index_select(dim, torch.tensor(others)))
    assert torch.equal(x, noise(2, 4, 5, 4))


def test_what_is_not_a_float_stays_and_structures_too() -> None:
    output = {"a": (noise(2, 3), torch.arange(6)), "b": [None, noise(2, 4, 3), 7]}
    new = replace_output(output, [1, 2], "zero", 0)
    assert torch.equal(new["a"][0], torch.zeros(2, 3))
    assert new["a"][1] is output["a"][1]
    assert torch.equal(new["b"][1], torch.zeros(2, 4, 3))
    assert (new["b"][0], new["b"][2]) == (None, 7)
    only_first = replace_output(output, [1, 2], "zero", 0, channel=1)
    assert torch.equal(only_first["a"][0][:, 1], torch.zeros(2))
    assert only_first["b"][1] is output["b"][1]
