"""Name the architecture of timm of a state dict, from names and shapes alone. Standard library; without timm.

The index beside this file holds a fingerprint of every model; `tests/models/timm_fingerprints.py` writes it.
"""

import hashlib
import itertools
import lzma
import math
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from modelscope_cli.records.run import Shape

_INDEX = Path(__file__).with_name("timm_architectures.txt.xz")
# Hexadecimal digits of SHA-256: of 2e11 files of others one is taken for timm's, and refused when it is loaded.
_LENGTH = 12
# Of images, that models are published for; and tokens before those of the patches.
_SIDES = (224, 384, 256, 512, 518, 336, 448, 240, 288, 320, 196)
_MOST_PREFIX = 6


def fingerprint(shapes: Mapping[str, Shape], heads: Collection[str]) -> str:
    """Return what two state dicts have in common that differ in their number of classes at most.

    Args:
        shapes: by the names as the model has them, without `num_batches_tracked`.
        heads: names of the tensors that depend on the number of classes in some model; a model without a head has
            none of them.
    """
    lines = sorted(
        f"{name} {','.join(map(str, shape))}\n" for name, shape in shapes.items() if name not in heads
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:_LENGTH]


def timm_architectures(shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """Return the names of timm's architectures whose tensors are just these, the plainest name first."""
    heads, named = _index()
    return named.get(fingerprint(shapes, heads), ())


def timm_otherwise(shapes: Mapping[str, Shape]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of timm's architectures that are just these if built for another number of channels or size
    of image than usual, and the arguments for that; nothing where there are none."""
    first = next((name for name, shape in shapes.items() if len(shape) == 4), "")
    kernel, tokens = shapes.get(first, ()), shapes.get("pos_embed", ())
    stems: list[tuple[dict[str, Shape], dict[str, int]]] = [({}, {})]
    if kernel and kernel[1] != 3:
        stems = [({first: (kernel[0], 3, *kernel[2:])}, {"in_chans": kernel[1]})]
    positions: list[tuple[dict[str, Shape], dict[str, int]]] = [({}, {})]
    if kernel and kernel[-1] > 1 and len(tokens) == 3:
        for prefix in range(_MOST_PREFIX):
            grid = math.isqrt(max(tokens[1] - prefix, 0))
            if grid * grid == tokens[1] - prefix:
                usual = ((side, (1, (side // kernel[-1]) ** 2 + prefix, tokens[2])) for side in _SIDES)
                said = {"img_size": grid * kernel[-1]}
                positions += [
                    ({"pos_embed": shape}, said) for side, shape in usual if said["img_size"] != side
                ]
    for (stem, channels), (position, side) in itertools.product(stems, positions):
        names = timm_architectures({**shapes, **stem, **position}) if stem or position else ()
        if names:
            return names, {**channels, **side}
    return (), {}


def classes_of_head(shapes: Mapping[str, Shape]) -> int | None:
    """Return the number of classes of a state dict of timm's; None without a head."""
    sizes = [shapes[name][0] for name in _index()[0] if shapes.get(name)]
    return min(sizes, default=None)


@cache
def _index() -> tuple[frozenset[str], dict[str, tuple[str, ...]]]:
    """Return the names of heads, and the names of models by their fingerprint."""
    heads, *lines = lzma.decompress(_INDEX.read_bytes()).decode().splitlines()
    rows = (line.split(" ") for line in lines)
    return frozenset(heads.split(" ")), {key: tuple(names) for key, *names in rows}
