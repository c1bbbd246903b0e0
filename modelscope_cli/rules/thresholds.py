"""Thresholds as people write them: 0.5, 25M, 500MB, 1,1000."""

import math
import re

from modelscope_cli.errors import UsageError

_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_BYTES = {
    **{"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KIB": 2.0**10, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40},
}
_EXAMPLES = {"number": "0.5", "count": "25M", "bytes": "500MB", "shape": "1,1000"}


def read(typed: object, kind: str, option: str, most: float = math.inf) -> float | str:
    """Turn what was typed, on the command line or in `pyproject.toml`, into a threshold.

    Args:
        kind: `number`, `count`, `bytes` or `shape`, as in `Rule`.
        option: what stands before it, for the error: `--set MS202=`.
        most: the largest threshold that can be exceeded or reached.

    Raises:
        UsageError: not of that kind, or larger than `most` (exit 2).
    """
    text = ",".join(map(str, typed)) if isinstance(typed, list) else str(typed).strip()
    value = _shape(text) if kind == "shape" else _number(text, kind)
    if value is None or isinstance(typed, bool):
        words = {
            "number": "a number",
            "count": "a count",
            "bytes": "an amount of memory",
            "shape": "a shape",
        }[kind]
        raise UsageError(f"'{option}{text}' is not {words}", f"{option}{_EXAMPLES[kind]}")
    if isinstance(value, float) and value > most:
        message = f"'{option}{text}' is above {most:g}, the largest value that this rule measures"
        raise UsageError(message, f"{option}{_EXAMPLES[kind]}")
    return value


def _shape(text: str) -> str | None:
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    return ",".join(str(int(part)) for part in parts) if all(map(_is_size, parts)) else None


def _is_size(part: str) -> bool:
    return part.isdecimal() and len(part) <= 18


def _number(text: str, kind: str) -> float | None:
    match = re.fullmatch(r"([+-]?[\d.]+(?:e[+-]?\d+)?)\s*([a-z]*)", text, re.IGNORECASE)
    units = {"number": {"": 1.0}, "count": _COUNTS, "bytes": _BYTES}[kind]
    if match is None or match[2].upper() not in units:
        return None
    try:
        value = float(match[1]) * units[match[2].upper()]
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def write(value: float | str | None, kind: str) -> str:
    """Return a threshold as people read it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if kind == "number" or value < 1000:
        return f"{value:g}" + (" B" if kind == "bytes" else "")
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.4g} {unit}" + ("B" if kind == "bytes" else "")
    raise AssertionError("unreachable")
