"""Name the architecture of timm of a state dict, from names and shapes alone. Standard library; without timm.

The index beside this file holds a fingerprint of every model; `tests/models/timm_fingerprints.py` writes it.
"""

import hashlib
import lzma
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

from modelscope_cli.records.run import Shape

_INDEX = Path(__file__).with_name("timm_architectures.txt.xz")
# Hexadecimal digits of SHA-256: of 2e11 files of others one is taken for timm's, and refused when it is loaded.
_LENGTH = 12


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
