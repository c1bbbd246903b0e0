"""What was asked of a training, checked before anything heavy is imported. Standard library."""

import itertools
import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from modelscope_cli.errors import UsageError, nearest, one_of
from modelscope_cli.models.request import ModelRequest, as_request
from modelscope_cli.records.bounds import MOST, absurdity
from modelscope_cli.records.keywords import DEFAULTS, ClassifierKeywords, LearningKeywords, ModelKeywords

if TYPE_CHECKING:
    from modelscope_cli.models.request import Model
    from modelscope_cli.training.data import DataSource

CHOICES = {
    "optimizer": ("sgd", "momentum", "nesterov", "adamw"),
    "schedule": ("constant", "one-cycle", "cosine"),
    "init": ("default", "kaiming-normal", "kaiming-uniform", "xavier", "lsuv"),
    "activation": ("relu", "leaky", "general"),
    "norm": ("batch", "layer", "group", "instance", "running", "none"),
}
# Where an option, and what is varied, is called otherwise than the setting; the first is what documents say.
_OPTIONS = {"norm": "norm-layer"}
_MOST = {"batch": MOST}
_LEAST: dict[str, float] = {"steps": 1, "batch": 1, "every": 1, "patience": 1}
_LEAST |= {"lr": 0.0, "label_smoothing": 0.0, "weight_decay": 0.0}


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


def request_of(keywords: ClassifierKeywords, **own: Any) -> TrainRequest:
    """Return what was asked for: by the keywords that all trainings share, and by those of one function."""
    said = {**DEFAULTS, **keywords}
    patterns = {"freeze", "train_only"}  # which want the model
    shared = LearningKeywords.__annotations__.keys() - patterns
    return TrainRequest(**{_field(name): said[name] for name in shared}, **own)


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
        if value is None:
            continue
        wrong = absurdity(value)
        if wrong or value > _MOST.get(field, value):
            raise UsageError(
                f"'--{_dashed(field)} {value:g}' is {wrong or f'more than {_MOST[field]}'}",
                f"--{_dashed(field)} {_usual(field):g}",
            )
        is_above = value > 0 if field == "lr" else value >= least
        if not (is_above and math.isfinite(value)):
            fits = "more than 0" if field == "lr" else f"{least:g} or more"
            hint = f"--{_dashed(field)} {_usual(field):g}"
            raise UsageError(f"'--{_dashed(field)} {value:g}' is not {fits}", hint)
    if request.label_smoothing > 1:
        message = f"'--label-smoothing {request.label_smoothing:g}' is not between 0 and 1"
        raise UsageError(message, "--label-smoothing 0.1")
    if request.clip_norm is not None and not request.clip_norm > 0:
        raise UsageError(f"'--clip-norm {request.clip_norm:g}' is not more than 0", "--clip-norm 1")


def _usual(field: str) -> float:
    value = getattr(TrainRequest(), field)
    return 1 if value is None else float(value)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return one or several as a tuple."""
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def seed_of(model: "Model", keywords: ClassifierKeywords) -> int:
    """Return the seed of everything random: that of the request, or what was said beside a module."""
    return model.seed if isinstance(model, ModelRequest) else keywords.get("seed", 0)


def check_drawn(pictures: int, size: int) -> None:
    """Refuse too few pictures to hold a tenth of them out, or too small ones to show a shape (exit 2)."""
    for name, value, least in (("pictures", pictures, 20), ("size", size, 8)):
        if value < least:
            raise UsageError(f"'--{name} {value}' is not {least} or more", f"--{name} {least}")


def name_model(
    model: "Model", weights: str, keywords: ClassifierKeywords, num_classes: int | None = None
) -> "Model":
    """Return the request for a model that is named; a module comes back as it is."""
    if not isinstance(model, str | PathLike):
        return model
    said: ModelKeywords = {**keywords, "weights": weights, "num_classes": num_classes}  # type: ignore[typeddict-item]
    return as_request(model, said)


def check_source(source: "DataSource", request: TrainRequest, n_trainings: int) -> None:
    """Refuse data that cannot give what was asked for (exit 2)."""
    if request.patience and not source.has_held_out:
        message = f"'--patience {request.patience}' needs validation images, and '{source.source}' has none"
        raise UsageError(
            message,
            f"leave out --patience {request.patience}   or give a pair of loaders: (training, held_out)",
        )
    if n_trainings > 1 and not source.starts_anew:
        message = f"'{source.source}' can be iterated only once, and {n_trainings} trainings were asked for"
        raise UsageError(message, "give a DataLoader, or a list of batches")


def check_one_source(data: Any, loaders: str | None) -> None:
    """Refuse two places that the data come from (exit 2)."""
    if loaders is not None and data is not None:
        shown = f"the folder '{data}'" if isinstance(data, str | PathLike) else "the data passed in"
        raise UsageError(
            f"'--loaders {loaders}' and {shown} exclude each other",
            f"leave out --loaders {shlex.quote(loaders)}",
        )


def check_init(request: TrainRequest, model: "Model") -> None:
    """Refuse a fresh initialisation of weights that were asked for; a module's own are in the copy only.

    Raises:
        UsageError: exit code 2.
    """
    if request.init == "default" or not isinstance(model, ModelRequest):
        return
    if model.checkpoint or model.weights.lower() != "none":
        given = f"--checkpoint {model.checkpoint}" if model.checkpoint else f"--weights {model.weights}"
        raise UsageError(
            f"'--init {request.init}' would overwrite the weights of '{given}'", "--init default"
        )


def check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that is none of `choices`, naming the near ones (exit 2)."""
    if value not in choices:
        near = nearest(value, choices)
        message = f"unknown {_dashed(field)} '{value}'" + (f": {near}" if near else "")
        raise UsageError(message, one_of(value, choices))


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
        field = _field(name)
        if field not in _VARIED:
            near = nearest(field, _VARIED)
            message = f"'--vary {typed}' does not name an option that can be varied" + (
                f": {near}" if near else ""
            )
            meant = near.removeprefix("did you mean ").split(", ")[0] or "lr"
            every = f"one of {', '.join(map(_dashed, _VARIED))}"
            raise UsageError(message, f"--vary {_dashed(meant)}={_example(meant)}   {every}")
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not equals or not words:
            raise UsageError(
                f"'--vary {typed}' names no values", f"--vary {_dashed(field)}={_example(field)}"
            )
        if field in axes:
            both = f"{_dashed(field)}={','.join([*axes[field], *words])}"
            raise UsageError(f"'--vary {_dashed(field)}' is given twice", f"--vary {shlex.quote(both)}")
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


def _field(typed: str) -> str:
    """Return the setting that an option to be varied means."""
    word = typed.strip().lower().replace("_", "-")
    return next((field for field, option in _OPTIONS.items() if option == word), word.replace("-", "_"))


def _dashed(field: str) -> str:
    return _OPTIONS.get(field, field.replace("_", "-"))
