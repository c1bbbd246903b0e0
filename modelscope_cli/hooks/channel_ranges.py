"""Channels as they are typed: `3,7,10..20`. Standard library."""

import re

Range = tuple[int, int]  # first and last, both included
_RANGE = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?\Z", re.ASCII)


def parse_range(part: str) -> Range:
    """Return the first and the last channel of `7` or `10..20`.

    Raises:
        ValueError: says what is wrong with it; its second argument is what may have been meant, or empty.
    """
    found = _RANGE.match(part)
    if not found:
        raise ValueError("is not a channel such as 3 or 0..15", "")
    first, last = int(found[1]), int(found[2] or found[1])
    if first > last:
        raise ValueError("counts backwards", f"{last}..{first}")
    return first, last


def channels_of(text: str) -> tuple[Range, ...]:
    """Return the ranges of `3,7,10..20`, in this order.

    Raises:
        ValueError: as of `parse_range`, of the first part that is wrong, which is the third argument.
    """
    ranges = []
    for part in text.split(","):
        try:
            ranges.append(parse_range(part.strip()))
        except ValueError as error:
            raise ValueError(*error.args, part) from None
    return tuple(ranges)
