"""The small languages of the input options: shapes, sizes and channel values. Pure, standard library only."""

import math
from dataclasses import dataclass

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.records.bounds import absurdity
from modelscope_cli.records.run import Shape

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
MAX_ELEMENTS = 2**33
# A float32 RGB picture of this many pixels is 200 MB; nothing a model takes is larger.
MAX_PICTURE_PIXELS = 2**24
_SHAPE_HINT = "--input-shape 1,3,224,224"


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """One parsed `--input-shape`. `dtype` is None where none was typed."""

    shape: Shape
    dtype: str | None = None

    @property
    def is_integer(self) -> bool:
        """Whether noise of it is integers."""
        return self.dtype in INTEGERS


def parse_shape(text: str) -> ShapeSpec:
    """Read `[dtype:]N,C,H,W`.

    Raises:
        UsageError: exit code 2; quotes the part that cannot be read.
    """
    prefix, colon, sizes = text.rpartition(":")
    dtype = prefix.strip() if colon else None
    if dtype is not None and dtype not in FLOATS + INTEGERS:
        hint = nearest(dtype, FLOATS + INTEGERS) or "one of " + ", ".join(FLOATS + INTEGERS)
        raise UsageError(f"'{prefix}' in '--input-shape {text}' is not a dtype", hint)
    shape = tuple(_whole_number(part, f"--input-shape {text}", _SHAPE_HINT) for part in sizes.split(","))
    if math.prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"'--input-shape {text}' asks for more than {MAX_ELEMENTS:,} elements", _SHAPE_HINT)
    return ShapeSpec(shape, dtype)


def parse_size(text: str) -> tuple[int, ...]:
    """Read `N` (both sides) or `H,W`, in pixels.

    Raises:
        UsageError: exit code 2.
    """
    hint = "--size 224 or --size 224,320 (height, width)"
    size = tuple(_whole_number(part, f"--size {text}", hint) for part in text.split(","))
    if len(size) > 2:
        raise UsageError(f"'--size {text}' has {len(size)} numbers, not one or two", hint)
    if size[0] * size[-1] > MAX_PICTURE_PIXELS:
        raise UsageError(f"'--size {text}' asks for more than {MAX_PICTURE_PIXELS:,} pixels", hint)
    return size


def parse_channels(option: str, text: str, n_channels: int) -> list[float]:
    """Read one number for all channels or one number for each.

    Raises:
        UsageError: exit code 2.
    """
    hint = f"{option} 0.5 or {option} {','.join(['0.5'] * n_channels)}"
    values = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = math.nan
        if math.isnan(value) or (option == "--std" and value <= 0):
            kind = "a positive number" if option == "--std" else "a number"
            raise UsageError(f"'{part}' in '{option} {text}' is not {kind}", hint)
        wrong = absurdity(value)
        if wrong:
            raise UsageError(f"'{part}' in '{option} {text}' is {wrong}", hint)
        values.append(value)
    if len(values) == 1:
        return values * n_channels
    if len(values) != n_channels:
        raise UsageError(f"'{option} {text}' has {len(values)} numbers for {n_channels} channels", hint)
    return values


def by(shape: Shape | list[int]) -> str:
    """Write a shape as people read it: `1 x 3 x 224 x 224`."""
    return " x ".join(map(str, shape))


def _whole_number(part: str, typed: str, hint: str) -> int:
    digits = part.strip()
    if not (digits.isascii() and digits.isdecimal()) or not digits.strip("0"):
        raise UsageError(f"'{part}' in '{typed}' is not a whole number above 0", hint)
    if len(digits) > 18:
        raise UsageError(f"'{part}' in '{typed}' is absurdly large", hint)
    return int(digits)
