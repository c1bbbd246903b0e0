"""Which steps are looked at closely. Standard library only."""

_YOUNG = 4  # bits: every step below 2**4, then eight for each doubling


def is_recorded(step: int, every: int | None) -> bool:
    """Tell whether a step, counted from 0, is recorded.

    Left to itself the interval grows with age: 1 up to step 15, then 2, from 32 on 4, from 64 on 8. So a
    run of a million steps has 144 records, and each is within 1/8 of the time at which something happened.
    """
    if every is not None:
        return step % every == 0
    return step % (1 << max(step.bit_length() - _YOUNG, 0)) == 0
