"""Images of different data sets that show the same picture: resized, compressed again, brighter, or gray."""

import math
from collections.abc import Sequence

from modelscope_cli.analysis.dataset.look import THUMBNAIL, ImageFacts

# Chosen on images of 12 kinds (crops of a photograph; the others made: scenes, scans, textures, digits, charts,
# drawings, text, screens ...), and measured on others.
_MOST_APART, _APART = 0.5, 0.15  # in standard deviations of the pixels: the largest difference, and its RMS
_CURVED, _SHARE = 3, 0.2  # a plain image has fewer second differences of so many gray levels, as share of all
_BLOCK = 1 << 24  # pairs compared at once


def find_near_copies(
    facts: Sequence[ImageFacts], good: Sequence[int], sets: Sequence[int]
) -> list[list[int]]:
    """Return groups of an image and those of later data sets that look like it most, other than exact copies.

    Plain images, with a flat background or a gradient, look like too many others and are left out.
    """
    if not any(sets):
        return []
    import numpy as np

    pixels = np.frombuffer(b"".join(facts[n].thumbnail for n in good), np.uint8).astype(np.float32)
    pixels = pixels.reshape(-1, *THUMBNAIL)
    curved = [(abs(np.diff(pixels, 2, axis)) >= _CURVED).mean((1, 2)) for axis in (1, 2)]
    is_structured = np.mean(curved, axis=0) >= _SHARE
    numbers, flat = np.asarray(good)[is_structured], pixels[is_structured].reshape(-1, math.prod(THUMBNAIL))
    flat = (flat - flat.mean(1, keepdims=True)) / flat.std(1, keepdims=True)
    places = np.asarray(sets)[numbers]  # ascending
    groups: dict[int, list[int]] = {}
    size = _BLOCK // (len(flat) + 1) + 1
    for at in range(0, len(flat), size):
        block, place = flat[at : at + size], places[at : at + size]
        n_before = max(1, int(np.searchsorted(places, place[-1])))
        likeness = np.where(places[:n_before] < place[:, None], block @ flat[:n_before].T, 0)
        nearest = likeness.argmax(1)
        gaps = block - flat[nearest]
        is_copy = (abs(gaps).max(1) <= _MOST_APART) & ((gaps**2).mean(1) <= _APART**2)
        for n in np.flatnonzero(is_copy & (places[nearest] < place)):
            first, copy = int(numbers[nearest[n]]), int(numbers[at + n])
            if facts[first].pixels_sha256 != facts[copy].pixels_sha256:
                groups.setdefault(first, [first]).append(copy)
    return [*groups.values()]
