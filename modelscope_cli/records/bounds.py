"""Bounds of plausible numbers, checked where they are typed and not where they overflow. Standard library."""

import math

SMALLEST, LARGEST = 1e-30, 1e12
MOST = 1_000_000  # of anything that is counted: images in a batch, classes, levels
LONGEST_RUN = 1_000_000_000  # steps
LAST_SEED = 2**32 - 1  # the largest that every random generator takes


def absurdity(value: float) -> str | None:
    """Say what is wrong with a number that no computation here can use; None of every other."""
    if not math.isfinite(value):
        return "not a finite number"
    if abs(value) > LARGEST:
        return f"beyond {LARGEST:g}, which is meaningless"
    if value and abs(value) < SMALLEST:
        return f"nearer to 0 than {SMALLEST:g}, which is meaningless"
    return None
