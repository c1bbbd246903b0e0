"""Bounds of plausible numbers, checked at input rather than on overflow. Standard library only."""

import math

SMALLEST, LARGEST = 1e-30, 1e12
MOST = 1_000_000  # of any count: images in a batch, classes, levels
LONGEST_RUN = 1_000_000_000  # steps
LAST_SEED = 2**32 - 1  # the largest that every random generator accepts


def absurdity(value: float) -> str | None:
    """Return why no computation here can use a number; None if it is usable."""
    if not math.isfinite(value):
        return "not a finite number"
    if abs(value) > LARGEST:
        return f"beyond {LARGEST:g}, which is meaningless"
    if value and abs(value) < SMALLEST:
        return f"nearer to 0 than {SMALLEST:g}, which is meaningless"
    return None
