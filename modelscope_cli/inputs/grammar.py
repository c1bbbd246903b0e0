"""Parse the input options: shapes, sizes and channel values. Standard library only."""

import math
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from modelscope_cli.errors import UsageError, nearest_names
from modelscope_cli.records.naming import absurdity
from modelscope_cli.records.run import Shape

FLOATS = ("float64", "float32", "float16", "bfloat16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "bool")
MAX_ELEMENTS = 2**33
# A float32 RGB image of this many pixels takes 200 MB; no model takes larger ones.
MAX_IMAGE_PIXELS = 2**24
_SHAPE_HINT = "--input-shape 1,3,224,224"


@dataclass(frozen=True, slots=True)
class ShapeSpec:
    """One parsed `--input-shape`; `dtype` is None if not typed."""

    shape: Shape
    dtype: str | None = None

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS

    def __str__(self) -> str:
        """Return it as it is typed."""
        return f"{self.dtype}:" * bool(self.dtype) + ",".join(map(str, self.shape))


def parse_shape(text: str, option: str = "--input-shape ", hint: str = _SHAPE_HINT) -> ShapeSpec:
    """Read `[dtype:]N,C,H,W`, or `1x3x224x224` and `(1, 3, 224, 224)` as tables and Python write it.

    Args:
        option: the option it follows, for messages.
    """
    option_typed = f"{option}{text}"
    prefix, colon, sizes = text.rpartition(":")
    dtype = prefix.strip() if colon else None
    if dtype is not None and dtype not in FLOATS + INTEGERS:
        meant, *_ = *nearest_names(dtype, FLOATS + INTEGERS, 1), "float32"
        near = f"{option}{meant}:{','.join(re.split('[,x ]+', sizes.strip('()[] ')))}"
        raise UsageError(f"'{prefix}' in '{option_typed}' is not a dtype", near)
    parts = sizes.strip("()[] ").split("," if "," in sizes else "x")
    shape = tuple(_whole_number(part, option_typed, hint) for part in parts)
    if math.prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"'{option_typed}' asks for more than {MAX_ELEMENTS:,} elements", hint)
    return ShapeSpec(shape, dtype)


def parse_named(typed: Iterable[str]) -> dict[str, list[str]]:
    """Parse every `NAME=SPEC`; repeated names collect their specs in order."""
    named: dict[str, list[str]] = {}
    for text in typed:
        name, _, spec = (part.strip() for part in text.partition("="))
        if not name or not spec:
            sizes = re.findall(r"\d+", name)
            if not spec and re.fullmatch(r"[\d\s,x()\[\]]+", name) and sizes:
                hint = f"--input-shape {','.join(sizes)}   instead of --input {shlex.quote(text)}"
            else:
                given = (name, spec) if "=" in text else ("x", name)
                name, spec = given if os.path.isfile(name) else (name or "NAME", spec or "1,3,224,224")
                hint = f"--input {shlex.quote(f'{name}={spec}')}"
            raise UsageError(f"'--input {text}' is not NAME=SPEC", hint)
        named.setdefault(name, []).append(spec)
    return named


def files_of(typed: Iterable[str]) -> list[str]:
    """Return the files in `NAME=SPEC` values."""
    named = parse_named(typed)
    return [spec for name, specs in named.items() for spec in specs if shape_in(name, spec) is None]


def shape_in(name: str, spec: str) -> ShapeSpec | None:
    """Return the shape in a spec of `--input`; None if it names a file."""
    is_shape = re.fullmatch(r"(\w+:)?[\d\s]+([,x][\d\s]*)*", spec) is not None
    is_nearly = not os.path.exists(spec) and re.fullmatch(r"(\w*:)?[\w\s-]+(,[\w\s-]*)+", spec) is not None
    if not is_shape and not is_nearly:
        return None
    return parse_shape(spec, f"--input {name}=", f"--input {name}=1,3,224,224")


def parse_size(text: str) -> tuple[int, ...]:
    """Read `N` (both sides) or `H,W`, in pixels."""
    typed = re.fullmatch(r"([1-9][0-9]*)(?:px)?(?:[xX*]([1-9][0-9]*)(?:px)?)?", text)
    sides = ",".join(filter(None, typed.groups())) if typed else "224 or --size 224,320   height, width"
    hint = f"--size {sides}"
    size = tuple(_whole_number(part, f"--size {text}", hint) for part in text.split(","))
    if len(size) > 2:
        raise UsageError(f"'--size {text}' has {len(size)} numbers, not one or two", hint)
    if size[0] * size[-1] > MAX_IMAGE_PIXELS:
        raise UsageError(f"'--size {text}' asks for more than {MAX_IMAGE_PIXELS:,} pixels", hint)
    return size


def parse_channels(option: str, text: str, n_channels: int) -> list[float]:
    """Read one number for all channels or one per channel."""
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
    """Format a shape: `1 x 3 x 224 x 224`."""
    return " x ".join(map(str, shape))


def _whole_number(part: str, option_typed: str, hint: str) -> int:
    digits = part.strip()
    if not (digits.isascii() and digits.isdecimal()) or not digits.strip("0"):
        raise UsageError(f"'{part}' in '{option_typed}' is not a whole number above 0", hint)
    if len(digits) > 18:
        raise UsageError(f"'{part}' in '{option_typed}' is too large", hint)
    return int(digits)
