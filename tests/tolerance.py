"""By how much two computations of one number may differ: the one rule for every comparison of floats.

Exactly equal are the same tensor and its copies, integers, masks, the state of a generator, a hash of memory that
nobody wrote to, and one kernel run again on the same memory. Two models in two allocations, another batch size or
another order of a sum may differ in the last bit, and another CPU has other kernels: they are compared by `close`
and `assert_close`. What is uncertain for another reason (a random sample, printed digits, 8-bit pixels) keeps a
`pytest.approx` of its own.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

A_LAYER = 1_000  # terms that a convolution, a matrix product or a mean adds up
A_NETWORK = 100_000  # some tens of layers, one behind the other, and back


def tolerance(operations: int, dtype: torch.dtype = torch.float32) -> float:
    """Return the relative error of a chain of so many roundings.

    Each is at most half an epsilon and they point either way, so they grow with the square root of their number
    (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis"); 8 leaves room for bad luck.
    """
    return 8 * torch.finfo(dtype).eps * operations**0.5


def close(
    expected: Any, operations: int = A_LAYER, *, scale: float = 0.0, dtype: torch.dtype = torch.float32
) -> Any:
    """Return what equals `expected` up to rounding; nothing but None equals None.

    Args:
        operations: how many roundings lie between what both sides start from and what is compared.
        scale: how large the terms were that cancelled; errors are relative to them.
        dtype: what the less exact side computes in.
    """
    if expected is None:
        return None
    if isinstance(expected, Tensor):
        expected = expected.detach().double().numpy()
    rel = tolerance(operations, dtype)
    return pytest.approx(expected, rel=rel, abs=max(rel * scale, 1e-12))


def assert_close(actual: Any, expected: Any, operations: int = A_LAYER, *, scale: float = 0.0) -> None:
    """Compare tensors, or mappings of them, up to rounding in their dtype.

    An element is judged by the largest of its tensor: that is how large the terms were that may have cancelled.
    """
    if isinstance(expected, Mapping):
        assert actual.keys() == expected.keys()
        for name in expected:
            assert_close(actual[name], expected[name], operations, scale=scale)
        return
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    if torch.equal(actual, expected):
        return
    assert expected.is_floating_point()
    finite = expected.detach()[expected.detach().isfinite()].abs()
    largest = float(finite.max()) if finite.numel() else 0.0
    rel = tolerance(operations, expected.dtype)
    torch.testing.assert_close(actual, expected, rtol=rel, atol=rel * max(largest, scale), equal_nan=True)


def are_close(actual: Any, expected: Any, operations: int = A_LAYER) -> bool:
    """Tell whether `assert_close` would pass."""
    try:
        assert_close(actual, expected, operations)
    except AssertionError:
        return False
    return True
