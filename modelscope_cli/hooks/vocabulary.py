"""The words of `--hook`: its kinds, its actions, and how the arguments of each action are read."""

import math
from collections.abc import Callable
from dataclasses import dataclass

KINDS = ("forward", "pre", "grad", "param-grad", "full-backward")
BACKWARD_KINDS = ("grad", "param-grad", "full-backward")

Argument = int | float | str


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError("not a number") from None
    if math.isnan(value):
        raise ValueError("not a number")
    return value


def _size(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise ValueError("not a number from 0 up")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise ValueError("not a whole number from 1")
    return int(text)


def _safetensors(text: str) -> str:
    if not text.lower().endswith(".safetensors"):
        raise ValueError("not a file that ends in .safetensors")
    return text


def _function(text: str) -> str:
    where, _, name = text.rpartition(":")
    if not (where and name):
        raise ValueError("not of the form path/to/file.py:function")
    return text


@dataclass(frozen=True, slots=True)
class Action:
    """What an action takes.

    Attributes:
        example: how it is written.
        reads: one reader an argument; raises ValueError with what the text is, `not a number`.
    """

    example: str
    reads: tuple[Callable[[str], Argument], ...] = ()


ACTIONS = {
    "zero": Action("zero"),
    "scale": Action("scale=2", (_number,)),
    "add": Action("add=10", (_number,)),
    "clamp": Action("clamp=-1,1", (_number, _number)),
    "noise": Action("noise=0.1", (_size,)),
    "mean": Action("mean"),
    "keep": Action("keep=5", (_count,)),
    "shuffle": Action("shuffle"),
    "print": Action("print"),
    "save": Action("save=FILE.safetensors", (_safetensors,)),
    "nan-to-num": Action("nan-to-num"),
    "raise-on-nan": Action("raise-on-nan"),
    "call": Action("call=path/to/hooks.py:fn", (_function,)),
}
LOOKING = frozenset({"print", "save", "raise-on-nan"})  # these change nothing
