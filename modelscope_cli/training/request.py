"""The request for a training, checked before torch is imported. Standard library."""

import difflib
import itertools
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, cast

from modelscope_cli.errors import UsageError, with_nearest
from modelscope_cli.models.request import Model, ModelRequest, as_request
from modelscope_cli.records.keywords import DEFAULTS, ClassifierKeywords, LearningKeywords, ModelKeywords
from modelscope_cli.records.naming import LONGEST_RUN
from modelscope_cli.records.refusals import check_range, check_word

OPTIMIZERS = ("sgd", "momentum", "nesterov", "adamw")
SCHEDULES = ("constant", "one-cycle", "cosine")
INITS = ("default", "kaiming-normal", "kaiming-uniform", "kaiming", "xavier")
NORMS = ("batch", "layer", "group", "instance", "none")
# Options whose setting has another name in documents.
_SETTINGS = {"norm_layer": "norm"}


@dataclass(frozen=True, slots=True)
class TrainRequest:
    """How to train."""

    steps: int = 100  # optimizer steps
    batch: int = 32  # images in each
    optimizer: str = "momentum"
    lr: float = 0.05  # the constant learning rate, or the peak of the schedule
    schedule: str = "constant"
    label_smoothing: float = 0.0
    weight_decay: float = 0.0
    init: str = "default"
    norm: str = "batch"
    clip_norm: float | None = None  # largest global norm of the gradients; None for no clipping
    every: int | None = None  # record every this many steps; None for about 200 records in all
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("steps", self.steps, least=1, most=LONGEST_RUN)
        check_range("batch", self.batch, least=1)
        check_range("every", self.every, least=1, most=LONGEST_RUN)
        check_range("label_smoothing", self.label_smoothing, least=0, most=1)
        check_range("weight_decay", self.weight_decay, least=0)
        check_range("lr", self.lr, above=0)
        check_range("clip_norm", self.clip_norm, above=0)
        check_word("optimizer", self.optimizer, OPTIMIZERS)
        check_word("schedule", self.schedule, SCHEDULES)
        check_word("init", self.init, INITS)
        check_word("norm_layer", self.norm, NORMS)

    @property
    def looks_every(self) -> int:
        return self.every or max(1, math.ceil(self.steps / 200))


def request_of(keywords: ClassifierKeywords, **options: Any) -> TrainRequest:
    """Return the request made of the keywords that all trainings share and those of one function."""
    merged = {**DEFAULTS, **keywords}
    patterns = {"freeze", "train_only"}  # resolved with the model
    shared = LearningKeywords.__annotations__.keys() - patterns
    return TrainRequest(**{_SETTINGS.get(name, name): merged[name] for name in shared}, **options)


# What can be varied, with an example.
_VARIED = {
    "optimizer": "sgd,momentum",
    "schedule": "constant,one-cycle",
    "init": "default,kaiming-normal",
    "norm_layer": "batch,layer",
    "lr": "0.01,0.1",
    "batch": "16,64",
    "label_smoothing": "0,0.1",
    "weight_decay": "0,0.01",
}


def name_model(model: "Model", weights: str, keywords: ClassifierKeywords) -> "Model":
    """Return the request for a named model; a module is returned unchanged."""
    if not isinstance(model, str | PathLike):
        return model
    return as_request(model, cast("ModelKeywords", {**keywords, "weights": weights}))


def check_data(data: Any, loaders: str | None, pictures: int, size: int) -> None:
    """Refuse two sources of data, and drawn shapes that are too few, too small or too large (exit 2)."""
    check_range("pictures", pictures, least=20)
    check_range("size", size, least=8, most=4096)
    if loaders is not None and data is not None:
        source = f"the folder '{data}'" if isinstance(data, str | PathLike) else "the data passed in"
        raise UsageError(
            f"'--loaders {loaders}' and {source} cannot be combined",
            f"leave out --loaders {shlex.quote(loaders)}",
        )


def check_init(request: TrainRequest, model: "Model") -> None:
    """Refuse to initialise weights that were requested; those of a module change in the copy only."""
    if request.init == "default" or not isinstance(model, ModelRequest):
        return
    if model.checkpoint or model.weights.lower() != "none":
        option = f"--checkpoint {model.checkpoint}" if model.checkpoint else f"--weights {model.weights}"
        raise UsageError(
            f"'--init {request.init}' would overwrite the weights of '{option}'", "--init default"
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """One cell of the grid: what differs, in words (`init=xavier norm=none`), and the whole request."""

    name: str
    settings: dict[str, str]
    request: TrainRequest


def variants_of(request: TrainRequest, vary: Sequence[str]) -> tuple[Variant, ...]:
    """Return every combination of `--vary option=a,b`, the first option changing slowest; one without any."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        name, equals, values = text.partition("=")
        field = name.strip().lower().replace("-", "_")
        if field not in _VARIED:
            nearest_name = (difflib.get_close_matches(field, _VARIED, n=1, cutoff=0.5) or ["lr"])[0]
            message = f"'--vary {text}' is not an option that can be varied"
            every = f"one of {', '.join(map(_dashed, _VARIED))}"
            hint = f"--vary {_dashed(nearest_name)}={_VARIED[nearest_name]}   {every}"
            raise UsageError(with_nearest(message, field, _VARIED), hint)
        words = [word.strip() for word in values.split(",") if word.strip()]
        if not equals or not words:
            raise UsageError(f"'--vary {text}' names no values", f"--vary {_dashed(field)}={_VARIED[field]}")
        if field in axes:
            both = f"{_dashed(field)}={','.join([*axes[field], *words])}"
            raise UsageError(f"'--vary {_dashed(field)}' is given twice", f"--vary {shlex.quote(both)}")
        axes[field] = list(dict.fromkeys(words))
    variants = []
    for words_of_cell in itertools.product(*axes.values()):
        settings = dict(zip(axes, words_of_cell, strict=True))
        changed = {field: _read(field, word) for field, word in settings.items()}
        name = " ".join(f"{_dashed(field)}={word}" for field, word in settings.items())
        variants.append(
            Variant(
                name,
                settings,
                replace(request, **{_SETTINGS.get(field, field): value for field, value in changed.items()}),
            )
        )
    return tuple(variants)


def _read(field: str, word: str) -> Any:
    kind = type(getattr(TrainRequest(), _SETTINGS.get(field, field)))
    try:
        return kind(word)
    except ValueError as error:
        example = f"--vary {_dashed(field)}={_VARIED[field]}"
        raise UsageError(f"'{word}' is not a number for '--vary {_dashed(field)}'", example) from error


def _dashed(field: str) -> str:
    return field.replace("_", "-")
