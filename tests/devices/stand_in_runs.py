"""How two documents differ, one of them made on the device `stand`."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from outcome import Outcome

Python = Callable[..., Outcome]
Compare = Callable[..., tuple[Any, Any]]

ROUNDING = {"float32": 1e-4, "bfloat16": 2**-5}  # relative, after the operations of a small network
# What says where and when a document was made.
ELSEWHERE = {"argv", "device", "elapsed_ms", "seconds", "images_per_second", "feeding", "out_dir"}


def differences(a: Any, b: Any, rounding: float, path: str = "") -> Iterator[str]:
    """Yield the paths at which two documents differ by more than rounding, with both values."""
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a.keys() - ELSEWHERE:
            yield from differences(a[key], b[key], rounding, f"{path}.{key}")
    elif ".counts" in path and isinstance(a, list) and isinstance(a[0], int) and sum(a) == sum(b):
        moved = sum(abs(one - other) for one, other in zip(a, b, strict=True)) / 2
        if moved > max(1, rounding * sum(a)):  # one value may be rounded across an edge of a histogram
            yield f"{path}: {moved} of {sum(a)}"
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for n, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, rounding, f"{path}[{n}]")
    elif isinstance(a, float) and isinstance(b, float):
        if not math.isclose(a, b, rel_tol=rounding, abs_tol=rounding * 1e-2):
            yield f"{path}: {a} and {b}"
    elif a != b:
        yield f"{path}: {a} and {b}"
