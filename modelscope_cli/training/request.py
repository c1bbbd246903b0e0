"""What was typed about a training, checked before anything heavy is imported. Standard library."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from modelscope_cli.errors import UsageError, nearest

CHOICES = {
    "optimizer": ("sgd", "momentum", "nesterov", "adamw"),
    "schedule": ("constant", "one-cycle", "cosine"),
    "init": ("default", "kaiming-normal", "kaiming-uniform", "xavier", "lsuv"),
    "activation": ("relu", "leaky", "general"),
    "norm": ("batch", "layer", "group", "instance", "running", "none"),
}
_LEAST = {"batch": 1, "lr": 0.0, "label_smoothing": 0.0, "weight_decay": 0.0}


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """How to train.

    Attributes:
        steps: changes of the weights. `batch`: pictures in each.
        lr: the constant learning rate, or the peak of the schedule.
        leak, subtract, maximum: of the generalised ReLU; `leaky` uses `leak` alone.
        clip_norm: scale all gradients to this norm where theirs is greater; None for not at all.
        patience: stop after so many epochs without a better held-out loss; None for never.
        every: look at every so many steps; None for about 200 looks in all.
    """

    steps: int = 100
    batch: int = 32
    optimizer: str = "momentum"
    lr: float = 0.05
    schedule: str = "constant"
    label_smoothing: float = 0.0
    weight_decay: float = 0.0
    init: str = "default"
    activation: str = "relu"
    leak: float = 0.1
    subtract: float = 0.4
    maximum: float | None = None
    norm: str = "batch"
    clip_norm: float | None = None
    patience: int | None = None
    every: int | None = None
    seed: int = 0

    @property
    def looks_every(self) -> int:
        return self.every or max(1, math.ceil(self.steps / 200))


# What can be varied, and how a value is read.
_VARIED: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(CHOICES, str),
    **{"lr": float, "batch": int, "label_smoothing": float, "weight_decay": float},
}


def check_request(request: TrainRequest) -> None:
    """Refuse what no training can be.

    Raises:
        UsageError: an unknown name, or a number out of range (exit 2).
    """
    for field, choices in CHOICES.items():
        check_choice(field, getattr(request, field), choices)
    for field, least in _LEAST.items():
        value = getattr(request, field)
        is_above = value > 0 if field == "lr" else value >= least
        if not (is_above and math.isfinite(value)):
            fits = "more than 0" if field == "lr" else f"{least:g} or more"
            raise UsageError(
                f"'--{_dashed(field)} {value:g}' is not {fits}",
                f"--{_dashed(field)} {getattr(TrainRequest(), field):g}",
            )
    if request.label_smoothing > 1:
        message = f"'--label-smoothing {request.label_smoothing:g}' is not between 0 and 1"
        raise UsageError(message, "--label-smoothing 0.1")
    if request.clip_norm is not None and not request.clip_norm > 0:
        raise UsageError(f"'--clip-norm {request.clip_norm:g}' is not more than 0", "--clip-norm 1")


def check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is none of `choices`, naming the near ones (exit 2)."""
    if value not in choices:
        near = nearest(value, choices)
        message = f"unknown {_dashed(field)} '{value}'" + (f": {near}" if near else "")
        raise UsageError(message, f"--{_dashed(field)} {'|'.join(choices)}")


@dataclass(frozen=True, slots=True)
class Variant:
    """One cell of the grid: what differs, in words (`init=xavier norm=none`), and the whole request."""

    name: str
    settings: dict[str, str]
    request: TrainRequest


def variants_of(request: TrainRequest, vary: Sequence[str]) -> tuple[Variant, ...]:
    """Return every combination of `--vary option=a,b`, the first option changing slowest; one without any.

    Raises:
        UsageError: not of that form, an option that cannot be varied, or a value it does not take (exit 2).
    """
    axes: dict[str, list[str]] = {}
    for typed in vary:
        name, equals, values = typed.partition("=")
        field = name.strip().lower().replace("-", "_")
        if field not in _VARIED:
            near = nearest(field, _VARIED)
            message = f"'--vary {typed}' names no option that can be varied" + (f": {near}" if near else "")
            raise UsageError(message, f"--vary {'|'.join(map(_dashed, _VARIED))}=A,B")
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not equals or not words:
            raise UsageError(
                f"'--vary {typed}' names no values", f"--vary {_dashed(field)}={_example(field)}"
            )
        if field in axes:
            raise UsageError(f"'--vary {_dashed(field)}' is given twice", "one --vary with all values")
        axes[field] = list(dict.fromkeys(words))
    found = []
    for words_of_cell in itertools.product(*axes.values()):
        settings = dict(zip(axes, words_of_cell, strict=True))
        changed = replace(request, **{field: _read(field, word) for field, word in settings.items()})
        check_request(changed)
        name = " ".join(f"{_dashed(field)}={word}" for field, word in settings.items())
        found.append(Variant(name, settings, changed))
    return tuple(found)


def _read(field: str, word: str) -> Any:
    try:
        return _VARIED[field](word)
    except ValueError as error:
        example = f"--vary {_dashed(field)}={_example(field)}"
        raise UsageError(f"'{word}' is not a number for '--vary {_dashed(field)}'", example) from error


def _example(field: str) -> str:
    if field in CHOICES:
        return ",".join(CHOICES[field][:2])
    return {"lr": "0.01,0.1", "batch": "16,64", "label_smoothing": "0,0.1", "weight_decay": "0,0.01"}[field]


def _dashed(field: str) -> str:
    return field.replace("_", "-")
