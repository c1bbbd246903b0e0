"""How two documents differ, one of them made on an accelerator."""

import math
from collections.abc import Callable, Iterator, Set
from typing import Any

from outcome import Outcome

Python = Callable[..., Outcome]
Compare = Callable[..., tuple[Any, Any]]

ROUNDING = {"float32": 1e-4, "bfloat16": 2**-5}  # relative, after the operations of a small network
# What says where and when a document was made.
ELSEWHERE = {"argv", "device", "elapsed_ms", "seconds", "images_per_second", "out_dir"}
# The stand-in computes what the CPU does; other devices have kernels of their own, which round differently.
OTHER_KERNELS = 8
# Then these differ: numbers of values that cross a limit or are not bit-equal, and operators.
OF_KERNELS = {"counts", "sampled", "differing", "zero_fraction", "near_zero_fraction", "why", "uncounted_ops"}


def differences(
    a: Any, b: Any, rounding: float, path: str = "", left_out: Set[str] = ELSEWHERE
) -> Iterator[str]:
    """Yield the paths at which two documents differ by more than rounding, with both values."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a.keys() - left_out:
            yield from differences(a[key], b[key], rounding, f"{path}.{key}", left_out)
    elif ".counts" in path and a and isinstance(a[0], int) and len(a) == len(b) and sum(a) == sum(b):
        moved = sum(abs(one - other) for one, other in zip(a, b, strict=True)) / 2
        if moved > max(1, rounding * sum(a)):  # one value may be rounded across an edge of a histogram
            yield f"{path}: {moved} of {sum(a)}"
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for n, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, rounding, f"{path}[{n}]", left_out)
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=rounding, abs_tol=rounding * 1e-2):
            yield f"{path}: {a} and {b}"
    elif a != b:
        yield f"{path}: {a} and {b}"
