"""Name the architecture of a state dict, torchvision's or timm's, from names and shapes alone. Standard library.

The index beside this file holds the tensors of every model; `tests/models/architecture_index.py` writes it.
"""

import lzma
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from modelscope_cli.checkpoints.prefixes import without_prefixes
from modelscope_cli.models.timm_index import classes_of_head, timm_architectures, timm_otherwise
from modelscope_cli.records.run import Shape
from modelscope_cli.records.weights import Identified

_INDEX = Path(__file__).with_name("architectures.txt.xz")
# Heads that only training needs: whole groups of them may be missing.
_AUXILIARY = ("aux_classifier.", "aux1.", "aux2.", "AuxLogits.")
_N_NAMED = 50
# Far more than any of torchvision's has; to compare a hostile file with all of them would take minutes.
_MAX_TENSORS = 4000


def identify(shapes: Mapping[str, Shape]) -> Identified:
    """Return the architecture whose tensors are just these, else torchvision's nearest and what differs.

    Where one of torchvision's and one of timm's look alike, it is torchvision's. `num_batches_tracked` and dtypes
    do not matter, nor does what wrappers put before the names.
    """
    if len(shapes) > 2 * _MAX_TENSORS:  # there is at most one counter for each of the others
        return _Fit().identified(())
    named = {name: shape for name, shape in shapes.items() if not name.endswith("num_batches_tracked")}
    if len(named) > _MAX_TENSORS:
        return _Fit().identified(())
    best = _Fit()
    for prefix, reading in without_prefixes(named):
        state = {name: named[full] for full, name in reading.items()}
        fits = [_fit(name, wanted, state, prefix) for name, wanted in _index() if _is_near(wanted, state)]
        exact = [fit for fit in fits if fit.is_exact]
        if exact:
            return exact[0].identified(tuple(fit.name for fit in exact))
        best = max([best, *fits], key=lambda fit: fit.score)
        of_timm = timm_architectures(state)
        if of_timm and not (best.name in of_timm and best.only_lacks):
            return _identified_in_timm(of_timm, state, prefix)
    return best.identified(())


def otherwise(shapes: Mapping[str, Shape]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the models of timm, `timm:NAME`, that have these tensors if built with the arguments beside them."""
    named = {name: shape for name, shape in shapes.items() if not name.endswith("num_batches_tracked")}
    for _, reading in without_prefixes(named) if len(named) <= _MAX_TENSORS else ():
        names, args = timm_otherwise({name: named[full] for full, name in reading.items()})
        if names:
            return tuple(f"timm:{name}" for name in names), args
    return (), {}


def _identified_in_timm(names: tuple[str, ...], state: Mapping[str, Shape], prefix: str) -> Identified:
    candidates = tuple(f"timm:{name}" for name in names)
    return Identified(
        name=candidates[0] if len(candidates) == 1 else None,
        score=1.0,
        missing=(),
        unexpected=(),
        num_classes=classes_of_head(state),
        candidates=candidates,
        nearest=candidates[0],
        prefix=prefix,
    )


@dataclass(frozen=True, slots=True)
class _Fit:
    """How one architecture and one reading of the names go together."""

    name: str = ""
    score: float = 0.0
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    misshaped: tuple[str, ...] = ()
    num_classes: int | None = None
    prefix: str = ""

    @property
    def is_exact(self) -> bool:
        return bool(self.name) and not (self.missing or self.unexpected or self.misshaped)

    @property
    def only_lacks(self) -> bool:
        """Whether all that is there fits: a model of torchvision's without its head is not timm's."""
        return bool(self.name) and not (self.unexpected or self.misshaped)

    def identified(self, candidates: tuple[str, ...]) -> Identified:
        return Identified(
            name=self.name if len(candidates) == 1 else None,
            score=self.score,
            missing=self.missing[:_N_NAMED],
            unexpected=self.unexpected[:_N_NAMED],
            num_classes=self.num_classes,
            candidates=candidates,
            nearest=self.name or None,
            misshaped=self.misshaped[:_N_NAMED],
            prefix=self.prefix,
        )


@cache
def _blocks() -> tuple[str, ...]:
    """The part of each model: its name, then a line for each tensor, which begins with a blank."""
    return tuple(lzma.decompress(_INDEX.read_bytes()).decode().replace("\n ", "\0").splitlines())


def _index() -> Iterator[tuple[str, list[str]]]:
    for block in _blocks():
        name, *tensors = block.split("\0")
        yield name, tensors


def _is_near(wanted: list[str], state: Mapping[str, Shape]) -> bool:
    """Spare the comparison with what has nothing in common: none of the first, a middle, the last name."""
    probes = (wanted[0], wanted[len(wanted) // 2], wanted[-1])
    return any(line.partition(" ")[0] in state for line in probes)


def _fit(name: str, wanted: list[str], state: Mapping[str, Shape], prefix: str) -> _Fit:
    patterns = dict(line.split(" ") for line in wanted)
    absent = {part for part in _AUXILIARY if not any(key.startswith(part) for key in state)}
    missing = [key for key in patterns if key not in state and not key.startswith(tuple(absent))]
    common = [key for key in patterns if key in state]
    num_classes = _num_classes((patterns[key], state[key]) for key in common if "n" in patterns[key])
    misshaped = [key for key in common if not _is_like(patterns[key], state[key], num_classes)]
    unexpected = [key for key in state if key not in patterns]
    n_all = len(common) + len(missing) + len(unexpected)
    return _Fit(
        name,
        (len(common) - len(misshaped)) / n_all if n_all else 0.0,
        tuple(missing),
        tuple(unexpected),
        tuple(f"{key} {_text(state[key])} for {patterns[key].replace(',', 'x')}" for key in misshaped),
        num_classes,
        prefix,
    )


def _num_classes(pairs: Iterator[tuple[str, Shape]]) -> int | None:
    """Read the number of classes off the tensor that says it most plainly."""
    found = []
    for pattern, shape in pairs:
        dimensions = pattern.split(",")
        if len(dimensions) == len(shape):
            at = next(at for at, text in enumerate(dimensions) if "n" in text)
            factor = int(dimensions[at].removesuffix("n") or 1)
            if shape[at] % factor == 0:
                found.append((factor, shape[at] // factor))
    return min(found)[1] if found else None


def _is_like(pattern: str, shape: Shape, num_classes: int | None) -> bool:
    dimensions = pattern.split(",") if pattern else []
    return len(dimensions) == len(shape) and all(
        text == "*" or _dimension(text, num_classes) == size
        for text, size in zip(dimensions, shape, strict=True)
    )


def _dimension(text: str, num_classes: int | None) -> int | None:
    if not text.endswith("n"):
        return int(text)
    return None if num_classes is None else int(text.removesuffix("n") or 1) * num_classes


def _text(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def picture_side(shapes: Mapping[str, Shape], prefix: str) -> int | None:
    """Return the side of the pictures a vision transformer was trained on: it has a position for each patch."""
    positions = shapes.get(f"{prefix}encoder.pos_embedding", ())
    patch = shapes.get(f"{prefix}conv_proj.weight", ())
    if len(positions) != 3 or len(patch) != 4:
        return None
    return math.isqrt(positions[1] - 1) * patch[-1]
