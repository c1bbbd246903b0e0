"""The palette of every picture: a colour map, and a few colours that mean something else."""

from functools import lru_cache

from modelscope_cli.errors import UsageError, nearest

# Indices into the 256 colours of a picture.
N_COLOURS = 192
FLAT = 192  # a channel of one value: dead, or nothing to see
STRANGE = 193  # NaN and infinite values
IMAGE = range(194, 240)  # the image beside the maps, in the colours that suit it best
TEXT = range(240, 256)  # from the background to the colour of letters, for smooth edges
BACKGROUND = TEXT[0]

BACKGROUND_RGB = (17, 19, 24)
TEXT_RGB = (236, 238, 242)
_FLAT_RGB = (58, 61, 68)
_STRANGE_RGB = (255, 0, 170)


@lru_cache(maxsize=8)
def make_palette(cmap: str) -> bytes:
    """Return 256 RGB triples: `N_COLOURS` of the matplotlib colour map, then those above.

    Raises:
        UsageError: no colour map of that name; names the near ones (exit 2).
    """
    from matplotlib import colormaps

    if cmap not in colormaps:
        near = nearest(cmap, list(colormaps))
        raise UsageError(
            f"unknown colour map '{cmap}'" + (f": {near}" if near else ""),
            f"--cmap {near.removeprefix('did you mean ').split(', ')[0] or 'viridis'}",
        )
    colours = colormaps[cmap].resampled(N_COLOURS)(range(N_COLOURS), bytes=True)[:, :3].tobytes()
    steps = len(TEXT) - 1
    ramp = bytes(
        round(start + (end - start) * step / steps)
        for step in range(len(TEXT))
        for start, end in zip(BACKGROUND_RGB, TEXT_RGB, strict=True)
    )
    return colours + bytes(_FLAT_RGB) + bytes(_STRANGE_RGB) + bytes(3 * len(IMAGE)) + ramp
