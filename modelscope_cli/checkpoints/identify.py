"""Identify torchvision's or timm's architecture by tensor names and shapes alone. Standard library.

Two index files in this folder: the tensors of every torchvision model (written by
`tests/models/architecture_index.py`) and a fingerprint of every timm model (`tests/models/timm_fingerprints.py`).
"""

import hashlib
import lzma
import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path

from modelscope_cli.records.identified import Identified
from modelscope_cli.records.run import Shape

_WRAPPERS = ("module.", "model.", "_orig_mod.")
_MAX_PREFIXES = 3
# Names in checkpoints older than a renaming of layers, which torchvision converts on loading, too.
_DENSENET = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12])\.")


def without_prefixes(names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield readings of `names`: the prefix removed, and a map from full to remaining names.

    First without removing any. Torch's wrapper prefixes may be on some names only, any other prefix is on all.
    """
    readings = [("", {name: _DENSENET.sub(r"\1\2.", name) for name in names})]
    yield readings[0]
    for _ in range(_MAX_PREFIXES):
        readings = [
            (removed + prefix, {full: name.removeprefix(prefix) for full, name in reading.items()})
            for removed, reading in readings
            for prefix in _prefixes(reading.values())
        ]
        yield from readings


def _prefixes(names: Collection[str]) -> list[str]:
    prefixes = [prefix for prefix in _WRAPPERS if any(name.startswith(prefix) for name in names)]
    first = next(iter(names), "").partition(".")
    common = first[0] + first[1]
    if first[1] and common not in prefixes and all(name.startswith(common) for name in names):
        prefixes.append(common)
    return prefixes


_LEAST = 10  # tensors of a body: AlexNet's has as many


def _parts(names: Collection[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the names below every other prefix, such as `backbone.`, as `without_prefixes` does."""
    dots = (
        name[: dot.end()] for name in names for dot in islice(re.finditer(r"\.", name), _MAX_PREFIXES + 1)
    )
    for prefix in dict.fromkeys(dots):
        reading = {name: name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        if _LEAST <= len(reading) < len(names):
            yield prefix, reading


_TIMM_INDEX = Path(__file__).with_name("timm_architectures.txt.xz")
# Hexadecimal digits of SHA-256: one of 2e11 other files collides with a timm model, and is refused when loaded.
_LENGTH = 12


def fingerprint(shapes: Mapping[str, Shape], heads: Collection[str]) -> str:
    """Return a hash that is equal for state dicts that differ at most in their number of classes.

    Args:
        shapes: by the model's own tensor names, without `num_batches_tracked`.
        heads: names of tensors whose shape depends on the number of classes in some model.
    """
    lines = sorted(
        f"{name} {','.join(map(str, shape))}\n" for name, shape in shapes.items() if name not in heads
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:_LENGTH]


def timm_architectures(shapes: Mapping[str, Shape]) -> tuple[str, ...]:
    """Return the names of timm's architectures with exactly these tensors, the plainest name first."""
    heads, named = _timm_index()
    return named.get(fingerprint(shapes, heads), ())


@cache
def _timm_index() -> tuple[frozenset[str], dict[str, tuple[str, ...]]]:
    """Return the names of head tensors, and the model names by fingerprint."""
    heads, *lines = lzma.decompress(_TIMM_INDEX.read_bytes()).decode().splitlines()
    rows = (line.split(" ") for line in lines)
    return frozenset(heads.split(" ")), {key: tuple(names) for key, *names in rows}


_INDEX = Path(__file__).with_name("architectures.txt.xz")
# Heads used in training only, which may be missing.
_AUXILIARY = ("aux_classifier.", "aux1.", "aux2.", "AuxLogits.")
# Far more than any torchvision model has; comparing a hostile file with all of them would take minutes.
_MAX_TENSORS = 4000


def identify(shapes: Mapping[str, Shape]) -> Identified:
    """Return the architecture with exactly these tensors, else the nearest, also to those below a prefix, and the
    differences.

    Where torchvision and timm both match, torchvision wins. `num_batches_tracked`, dtypes and wrapper prefixes are
    ignored.
    """
    best = Identified(None, 0.0, (), (), None)
    if len(shapes) > 2 * _MAX_TENSORS:  # at most one counter per tensor
        return best
    named = {name: shape for name, shape in shapes.items() if not name.endswith("num_batches_tracked")}
    if len(named) > _MAX_TENSORS:
        return best
    beside: tuple[str, ...] = ()
    for prefix, reading in chain(without_prefixes(named), _parts(named)):
        state = {name: named[full] for full, name in reading.items()}
        fits = [_fit(name, wanted, state, prefix) for name, wanted in _index() if _is_near(wanted, state)]
        exact = [fit for fit in fits if fit.score == 1]
        others = tuple(name for name in named if name not in reading)
        if exact and not others:
            names = tuple(fit.nearest or "" for fit in exact)
            return replace(exact[0], name=names[0] if len(names) == 1 else None, candidates=names)
        nearest = max(fits, key=lambda fit: fit.score, default=best)
        of_timm = timm_architectures(state)
        is_headless = nearest.nearest in of_timm and not (nearest.unexpected or nearest.misshaped)
        if of_timm and not is_headless:  # a headless model of torchvision is not timm's
            nearest = _identified_in_timm(of_timm, state, prefix)
            if not others:
                return nearest
            nearest = replace(nearest, name=None, candidates=())
        best, beside = max((best, beside), (nearest, others), key=lambda one: one[0].score)
    unexpected = (*(f"{best.prefix * bool(beside)}{name}" for name in best.unexpected), *beside)
    return replace(best, unexpected=unexpected)


def _identified_in_timm(names: tuple[str, ...], state: Mapping[str, Shape], prefix: str) -> Identified:
    candidates = tuple(f"timm:{name}" for name in names)
    sizes_of_head = [state[name][0] for name in _timm_index()[0] if state.get(name)]
    return Identified(
        name=candidates[0] if len(candidates) == 1 else None,
        score=1.0,
        missing=(),
        unexpected=(),
        num_classes=min(sizes_of_head, default=None),
        candidates=candidates,
        nearest=candidates[0],
        prefix=prefix,
    )


@cache
def _index() -> tuple[tuple[str, list[str]], ...]:
    """Return the name of each model, and a line per tensor: its name and shape, with `n` for the classes."""
    text = lzma.decompress(_INDEX.read_bytes()).decode().replace("\n ", "\0")
    return tuple((name, lines) for name, *lines in (block.split("\0") for block in text.splitlines()))


def _is_near(wanted: list[str], state: Mapping[str, Shape]) -> bool:
    """Tell whether the first, a middle or the last name is present; else skip the full comparison."""
    probes = (wanted[0], wanted[len(wanted) // 2], wanted[-1])
    return any(line.partition(" ")[0] in state for line in probes)


def _fit(name: str, wanted: list[str], state: Mapping[str, Shape], prefix: str) -> Identified:
    """Return the match of one architecture with one reading of the names, as the `nearest`."""
    patterns = dict(line.split(" ") for line in wanted)
    absent = {part for part in _AUXILIARY if not any(key.startswith(part) for key in state)}
    missing = [key for key in patterns if key not in state and not key.startswith(tuple(absent))]
    common = [key for key in patterns if key in state]
    num_classes = _num_classes((patterns[key], state[key]) for key in common if "n" in patterns[key])
    misshaped = [key for key in common if not _is_like(patterns[key], state[key], num_classes)]
    unexpected = [key for key in state if key not in patterns]
    n_all = len(common) + len(missing) + len(unexpected)
    return Identified(
        name=None,
        score=(len(common) - len(misshaped)) / n_all if n_all else 0.0,
        missing=tuple(missing),
        unexpected=tuple(unexpected),
        num_classes=num_classes,
        nearest=name,
        misshaped=tuple(
            f"{key} {'x'.join(map(str, state[key])) or 'scalar'} for {patterns[key].replace(',', 'x')}"
            for key in misshaped
        ),
        prefix=prefix,
    )


def _num_classes(pairs: Iterator[tuple[str, Shape]]) -> int | None:
    """Return the number of classes by the tensor that shows it most plainly."""
    candidates = []
    for pattern, shape in pairs:
        dimensions = pattern.split(",")
        if len(dimensions) == len(shape):
            at = next(at for at, text in enumerate(dimensions) if "n" in text)
            factor = int(dimensions[at].removesuffix("n") or 1)
            if shape[at] % factor == 0:
                candidates.append((factor, shape[at] // factor))
    return min(candidates)[1] if candidates else None


def _is_like(pattern: str, shape: Shape, num_classes: int | None) -> bool:
    dimensions = pattern.split(",") if pattern else []
    known = [text.replace("n", "") or "1" for text in dimensions]
    factors = [(num_classes or 0) if "n" in text else 1 for text in dimensions]
    return len(dimensions) == len(shape) and all(
        text == "*" or int(text) * factor == size
        for text, factor, size in zip(known, factors, shape, strict=True)
    )


def image_side(shapes: Mapping[str, Shape], prefix: str) -> int | None:
    """Return the image side a vision transformer was trained on, by its number of position embeddings."""
    positions = shapes.get(f"{prefix}encoder.pos_embedding", ())
    patch = shapes.get(f"{prefix}conv_proj.weight", ())
    if len(positions) != 3 or len(patch) != 4:
        return None
    return math.isqrt(positions[1] - 1) * patch[-1]
