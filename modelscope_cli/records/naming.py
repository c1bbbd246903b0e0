"""Labels of layers, shortened lists, other shared wording, and bounds of numbers. Standard library only."""

import math
from collections.abc import Iterable
from typing import Protocol

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


# Images of one prediction: with ten equally likely classes, 8 agree by chance once in 10 million.
ENOUGH_ALIKE = 8
# Default threshold: |x| below it counts as near zero.
NEAR_ZERO = 0.05
# Layers and functions of torch that map all negative values to exact zeros, so that a channel can die.
RECTIFIERS = ("ReLU", "ReLU6", "Relu", "F.relu", "F.relu6")  # `Relu` of ONNX
_CELLS: dict[float, str] = {1: "1 gate (RNN)", 3: "3 gates (GRU)", 4: "4 gates (LSTM)"}


def cells_of(name: str, *shapes: tuple[int, ...]) -> list[str]:
    """Return the kinds of recurrent cells that a weight is of, by its shapes; empty if unknown or all one."""
    kinds = [_CELLS.get(one[0] / max(one[1], 1), "") for one in shapes if len(one) == 2]
    return kinds if "weight_hh" in name and len({*kinds}) > 1 and all(kinds) else []


def rounded(value: float, digits: int = 2) -> str:
    """Return a number with few significant digits, below a million without an exponent: `1200`, `0.0012`."""
    return f"{float(f'{value:.{digits}g}'):g}"


class Called(Protocol):
    """A row about one call of a layer."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def call(self) -> int: ...


def label(name: str, call: int) -> str:
    """Return the name as in a layer pattern: `relu`, and `relu#1` for its second call."""
    return f"{name}#{call}" if call else name


def label_of(row: Called) -> str:
    """Return the label of a row; the type for the model itself."""
    return label(row.name or row.type, row.call)


class CalledOutput(Called, Protocol):
    """A row about one of the outputs of a call; `output` is empty where there is only one."""

    @property
    def output(self) -> str: ...


def output_label_of(row: CalledOutput) -> str:
    """Return the label of a row with its output: `encoder [hidden]`."""
    return label_of(row) + (f" [{row.output}]" if row.output else "")


def layer_of(parameter: str) -> str:
    """Return the name of the layer that a parameter or buffer belongs to, by its qualified name.

    Modules that `torch.nn.utils.parametrize` adds to a layer belong to that layer.
    """
    owner, is_parametrized, _ = f".{parameter}".partition(".parametrizations.")
    return owner.removeprefix(".") if is_parametrized else parameter.rpartition(".")[0]


def block_of(layer: str) -> str:
    """Return the block of a layer: `layer1.0` of `layer1.0.conv1`, `features.2.0` of `features.2.0.block.1.0`.

    That is its name up to the end of the first numeric parts; without any, all but the last part.
    """
    parts = layer.split(".")[:-1]
    is_numbered = [any(mark.isdigit() for mark in part) for part in parts]
    if True not in is_numbered:
        return ".".join(parts)
    end = is_numbered.index(True)
    while end < len(parts) and is_numbered[end]:
        end += 1
    return ".".join(parts[:end])


def percent(share: float, digits: int = 0) -> str:
    """Return a share as in papers: `26 %`."""
    return f"{100 * share:.{digits}f} %"


def duration(seconds: float) -> str:
    """Return a measured time: `0.21 ms`, `38 ms`, `1.35 s`, `2,450 s`."""
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 999.5 else f"{seconds:,.0f} s"


def parents_of(layer: str) -> tuple[str, ...]:
    """Return the names of the parents of a layer, except the model: `a` and `a.b` of `a.b.c`."""
    path = layer.split(".")
    return tuple(".".join(path[:n]) for n in range(1, len(path)))


def counted(n: int, noun: str) -> str:
    """Return a number and a regular noun: `1 more layer`, `2 more layers`."""
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def with_article(noun: str) -> str:
    """Return a noun with its article: `a list`, `an int`, `an SGD`."""
    vowels = "AEFHILMNORSX" if noun.isupper() else "aeiouAEIOU"  # of letters that are spelled, and of words
    return f"{'an' if noun[:1] in tuple(vowels) else 'a'} {noun}"


def some(names: Iterable[str], most: int = 3, n: int = 0) -> str:
    """Return the first names and the number of the others: `a, b and 7 more`; `n`: of all, if not all are given."""
    every = list(names)
    more = max(n, len(every)) - most
    return ", ".join(every[:most]) + (f" and {more} more" if more > 0 else "")


def dtype_name(dtype: object) -> str:
    """Return the name of a torch dtype in records: `float32`."""
    return str(dtype).removeprefix("torch.")


def is_rectifier(type: str) -> bool:
    """Tell whether a layer or function of this type maps all negative values to exact zeros."""
    return type in RECTIFIERS
