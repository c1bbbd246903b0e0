"""The keywords that public functions share, with the names and defaults of the flags. Standard library only."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ParamSpec, TypedDict, TypeVar

from modelscope_cli.errors import ModelscopeError, UsageError, nearest, one_of
from modelscope_cli.records.naming import with_article
from modelscope_cli.records.nesting import room_for_depth
from modelscope_cli.records.run import invocation

P = ParamSpec("P")
R = TypeVar("R")


class ModelKeywords(TypedDict, total=False):
    """What can be said of a model that is named; a module that is handed over is taken as it is.

    Attributes:
        weights: `auto`, `none`, `DEFAULT` or a name such as `IMAGENET1K_V1`.
        checkpoint: a file with a state dict to load into the model.
        key: what to take out of it, `state_dict_ema`; None for the state dict where it usually stands.
        strict: False takes a checkpoint that does not fit exactly. True makes an error of every image that cannot
            be read, also where there are others, and may be said of a module, too.
        num_classes: classes of the head.
        model_arg: arguments for the model's class or factory.
        device, dtype: as on the command line: `auto`, `cuda:1`; `float32`, `bfloat16`, `float16`.
        seed: of random weights and of noise.
        offline: never touch the network.
    """

    weights: str
    checkpoint: str | PathLike[str] | None
    key: str | None
    strict: bool | None
    num_classes: int | None
    model_arg: Sequence[str] | Mapping[str, Any]
    device: str
    dtype: str
    seed: int
    offline: bool


class InputKeywords(TypedDict, total=False):
    """What can be said of the input.

    Attributes:
        input_shape: seeded noise of this shape: `(1, 3, 224, 224)`, `"int64:1,128"`, or a list of several inputs.
        size: resize and crop images to this: `224` or `(224, 320)`, height first.
        mean, std: normalise by one number a channel, on the scale 0..1.
        normalize: whether to normalise.
        batch: images in one forward.
        workers: processes that decode images beside the model, where there are many; None for as many as there are
            cores to spare, 4 at most.
    """

    input_shape: str | Sequence[int] | Sequence[str]
    size: str | int | Sequence[int] | None
    mean: str | float | Sequence[float] | None
    std: str | float | Sequence[float] | None
    normalize: bool
    batch: int | None
    workers: int | None


class Keywords(ModelKeywords, InputKeywords, total=False):
    """What every function that runs a model takes beside its own keywords."""


class BlockKeywords(Keywords, total=False):
    """What every function takes beside that cuts a list of image files into blocks of `batch`.

    Attributes:
        resume: go on with the finished blocks of a run that was given the same `out` and did not end.
        share: whether the other processes that torchrun has started call the same function with the same arguments;
            each of them returns the whole record, the first alone writes files. On the command line always so.
    """

    resume: bool
    share: bool


class LearningKeywords(TypedDict, total=False):
    """What can be said of a training, however long it is and whatever for.

    Attributes:
        optimizer: `sgd`, `momentum`, `nesterov` or `adamw`.
        label_smoothing: of cross-entropy; `weight_decay`: of the optimizer.
        init, activation, leak, subtract, maximum, norm_layer: what is changed in the model before.
        freeze, train_only: patterns of layers that are not trained, or outside of which nothing is.
    """

    optimizer: str
    label_smoothing: float
    weight_decay: float
    init: str
    activation: str
    leak: float
    subtract: float
    maximum: float | None
    norm_layer: str
    freeze: str | Sequence[str]
    train_only: str | Sequence[str]


class ClassifierKeywords(LearningKeywords, total=False):
    """What every function that trains takes beside its own keywords; the rest as in `ModelKeywords`."""

    checkpoint: str | PathLike[str] | None
    key: str | None
    strict: bool | None
    model_arg: Sequence[str] | Mapping[str, Any]
    device: str
    seed: int
    offline: bool


MODES = ("auto", "eval", "train")

DEFAULTS: dict[str, Any] = {
    **{"optimizer": "momentum", "label_smoothing": 0.0, "weight_decay": 0.0},
    **{"init": "default", "activation": "relu", "leak": 0.1, "subtract": 0.4, "maximum": None},
    **{"norm_layer": "batch", "freeze": (), "train_only": ()},
    **{
        "weights": "auto",
        "checkpoint": None,
        "key": None,
        "strict": None,
        "num_classes": None,
        "model_arg": (),
    },
    **{"device": "auto", "dtype": "float32", "seed": 0, "offline": False},
    **{"input_shape": (), "size": None, "mean": None, "std": None, "normalize": True, "batch": None},
    **{"workers": None},
    **{"resume": False, "share": False},
}


def spelled_out(function: Callable[P, R]) -> Callable[P, R]:
    """Show the shared keywords in the signature of a function with `**keywords`, and refuse others by name."""
    own = inspect.signature(function)
    kinds = _accepted(function)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds[name])
        for name, default in DEFAULTS.items()
        if name in kinds
    ]
    parameters = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    names = {*(p.name for p in parameters), *kinds}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in names:
                near = nearest(name, names)
                what = f"{function.__name__}() got an unexpected keyword argument '{name}'"
                raise TypeError(f"{what}: {near}" if near else what)
        try:
            with room_for_depth():
                return function(*args, **kwargs)
        except ModelscopeError as error:
            if not invocation().argv and error.hint:
                error.speak_python()
            raise

    call.__signature__ = own.replace(parameters=[*parameters, *shared])  # type: ignore[attr-defined]
    return call


def block_keywords(keywords: BlockKeywords) -> dict[str, bool]:
    """Return those that say how blocks are gone through."""
    return {"resume": keywords.get("resume", False), "share": keywords.get("share", False)}


def _accepted(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the shared keywords that a function takes."""
    kind = function.__annotations__.get("keywords")
    return {} if kind is None else kind.__args__[0].__annotations__


def check_choice(keyword: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a word that a keyword does not know."""
    if value not in choices:
        near = nearest(value, choices)
        message = f"'{value}' is not {with_article(keyword)}" + (f": {near}" if near else "")
        raise UsageError(message, one_of(value, choices))


def check_number(keyword: str, value: float, least: float, most: float = math.inf) -> None:
    """Refuse a number out of range."""
    if not least <= value <= most:
        allowed = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        raise UsageError(f"'{value}' is out of range for {keyword}: it is {allowed}", f"{keyword}={least:g}")


def texts(value: Any) -> str | None:
    """Return what a person would have typed: `(224, 320)` as `224,320`; None as it is."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(map(str, value)) if isinstance(value, Sequence) else str(value)
