"""Parse `--target`: which number of the output to follow."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index as as_integer
from typing import SupportsIndex

from modelscope_cli.errors import UsageError, nearest_names

PREDICTED = "predicted"
_IMAGENET = 1000  # classes: their labels come with torchvision, also for random weights
_FEW = 20  # labels to list in an error


@dataclass(frozen=True, slots=True)
class TargetSpec:
    """A parsed target."""

    typed: str  # the whole text
    kind: str  # `predicted`, `class`, `box` or `mask`
    name: str = ""  # the class; empty for the others
    number: int = 0  # of the box

    @property
    def is_class(self) -> bool:
        """Whether it is a class or the predicted one, so a target for a loss."""
        return self.kind in (PREDICTED, "class")


THE_PREDICTED = TargetSpec(PREDICTED, PREDICTED)
"""The default target."""


def parse_aim(target: str | SupportsIndex) -> TargetSpec:
    try:
        typed = target if isinstance(target, str) else str(as_integer(target))
    except TypeError:
        message = f"a target is one class for all images, not an object of type {type(target).__name__}"
        raise UsageError(message, "give one image at a time, each with its own target") from None
    if typed == PREDICTED:
        return THE_PREDICTED
    kind, colon, rest = typed.partition(":")
    if not colon or kind not in ("box", "mask"):
        return TargetSpec(typed, "class", typed)
    if kind == "box":
        if not re.fullmatch(r"\d{1,9}", rest):
            raise UsageError(f"'--target {typed}': boxes are numbered from 0, best first", "--target box:0")
        return TargetSpec(typed, kind, number=int(rest))
    if not rest:
        raise UsageError(f"'--target {typed}' needs a class after the colon", "--target mask:0")
    return TargetSpec(typed, kind, rest)


def class_index(target: str, n_classes: int | None, categories: Sequence[str] | None) -> int:
    """Read a class, which is an index or a label."""
    if re.fullmatch(r"[+-]?\d{1,18}", target):
        index = int(target)
        last = (n_classes or len(categories or ()) or index + 1) - 1
        if not 0 <= index <= last:
            message = f"target {target} is out of range: the classes are 0..{last}"
            raise UsageError(message, f"--target predicted   or one of 0..{last}")
        return index
    if not categories and n_classes == _IMAGENET:
        from torchvision.models import _meta

        categories = _meta._IMAGENET_CATEGORIES
    if not categories:
        message = f"target '{target}' is not a class index, and the labels of this model are unknown"
        raise UsageError(message, "--target predicted   or a class index; --labels FILE names the classes")
    matches = [i for i, label in enumerate(categories) if label.lower() == target.lower()]
    if not matches:
        with_word = [label for label in categories if re.search(rf"\b{re.escape(target)}\b", label, re.I)]
        likeliest = [*with_word, *nearest_names(target, categories)] or list(categories)
        listed = categories if len(categories) <= _FEW else likeliest[:_FEW]
        words = "the classes are" if listed is categories else "did you mean"
        message = f"unknown target '{target}': {words} {', '.join(dict.fromkeys(listed))}"
        raise UsageError(message, f"--target {shlex.quote(likeliest[0])}   or an index")
    if len(matches) > 1:
        message = f"target '{target}' is the label of {len(matches)} classes: {matches}"
        raise UsageError(message, f"--target {matches[0]}")
    return matches[0]


def name_class(index: int, categories: Sequence[str] | None) -> str:
    """Return a class in words: `3 (cat)`, or `3` if its label is unknown."""
    label = label_of_class(index, categories)
    return f"{index} ({label})" if label else str(index)


def label_of_class(index: int, categories: Sequence[str] | None) -> str | None:
    """Return the label of a class; None if unknown."""
    return categories[index] if categories and index < len(categories) else None


def means_nothing(aim: TargetSpec, words: str, instead: str) -> UsageError:
    """Return the error for a target that this kind of output does not support."""
    return UsageError(f"'--target {aim.typed}' does not apply: the model outputs {words}", instead)
