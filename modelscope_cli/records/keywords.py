"""The keywords that public functions share, with the names and defaults of the flags. Standard library only."""

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, ParamSpec, TypedDict, TypeVar

from modelscope_cli.errors import CannotRunError, ModelscopeError, UsageError, with_nearest
from modelscope_cli.records.run import invocation

MODES = ("auto", "eval", "train")
OUTPUT_KINDS = ("auto", "classes", "labels", "segmentation", "depth", "detection", "embedding")
P = ParamSpec("P")
R = TypeVar("R")


class LoadingKeywords(TypedDict, total=False):
    """The keywords of `ModelKeywords` that trainings and `summary` take, too."""

    checkpoint: str | PathLike[str] | None
    key: str | None
    strict: bool | None
    model_arg: Sequence[str] | Mapping[str, Any]
    device: str
    seed: int


class ModelKeywords(LoadingKeywords, total=False):
    """Keywords for a model given by name; a module passed from Python is used as it is.

    Attributes:
        weights: which weights: auto (pretrained: from torch's cache, else downloaded unless MSCOPE_OFFLINE=1, else
            random with a warning, or an error where a verdict is given), none (random, seeded), DEFAULT, or a name
            such as IMAGENET1K_V1.
        checkpoint: load this state dict (.safetensors, .pt, .pth, .bin, .ckpt) into the model.
        key: load this entry of a checkpoint instead of its state dict: state_dict_ema, model.generator.
        strict: a checkpoint that does not match exactly is an error unless --no-strict; an unreadable image among
            many is an error only with --strict. In Python, True also works for the images of a module.
        num_classes: how many classes the head has.
        model_arg: an argument for the model's class or factory (repeatable).
        device: the device: auto (the accelerator, else cpu), any torch device name, or a number.
        dtype: the dtype to run in: float32, bfloat16 or float16.
        seed: the seed of random weights and noise.
    """

    weights: str
    num_classes: int | None
    dtype: str


class InputKeywords(TypedDict, total=False):
    """Keywords for the input.

    Attributes:
        input_shape: seeded noise instead of images: 3,224,224, the same with the number of images, or int64:1,128
            (repeatable for several inputs). In Python also `(1, 3, 224, 224)`.
        size: resize and crop to this size instead. In Python, `224` or `(224, 320)`, height first.
        mean: the mean to normalise with; `mean` 0 and `std` 1 leave pixels at 0..1. In Python, one number or one
            per channel, on the scale 0..1.
        std: the standard deviation to normalise with. In Python as `mean`.
        batch: how many images go through the model at once.
        workers: how many processes decode images; by default the number of cores less one, at most 4.
    """

    input_shape: str | Sequence[int] | Sequence[str]
    size: str | int | Sequence[int] | None
    mean: str | float | Sequence[float] | None
    std: str | float | Sequence[float] | None
    batch: int | None
    workers: int | None


class Keywords(ModelKeywords, InputKeywords, total=False):
    """Keywords that every function that runs a model takes, in addition to its own."""


class OutputKeywords(Keywords, total=False):
    """Further keywords of every function that reads the output of a model.

    Attributes:
        output_kind: what the output is read as: auto (from the model, else names, else shapes), classes,
            labels (several classes or none), segmentation, depth (one value per pixel), detection, or embedding. Of
            several outputs `classes:NAME` or `auto:1` reads one, by its name or its number from 0.
    """

    output_kind: str


class LabelledKeywords(OutputKeywords, total=False):
    """Further keywords of every function that names classes.

    Attributes:
        labels: a file of class names, instead of those of the weights: one per line, a JSON list, or JSON {index:
            label}; or the names themselves: 'cat,dog', among which a model for images and texts, such as CLIP,
            chooses. In Python also a list of names.
    """

    labels: str | PathLike[str] | Sequence[str] | None


class BlockKeywords(Keywords, total=False):
    """Further keywords of every function that cuts a list of image files into blocks of `batch`.

    Attributes:
        resume: continue with the blocks in `out`, with any number of processes; the result is bit-identical to an
            uninterrupted run.
        share: whether the other processes of torchrun call the same function with the same arguments; each returns
            the whole record, which one of them saves. Always True on the command line.
    """

    resume: bool
    share: bool


class OutputBlockKeywords(BlockKeywords, LabelledKeywords, total=False):
    """Keywords of a function that reads outputs and cuts its images into blocks."""


class SummaryKeywords(LoadingKeywords, InputKeywords, total=False):
    """Keywords for the model and the input of a function that needs no weights."""

    num_classes: int | None
    dtype: str


class LearningKeywords(TypedDict, total=False):
    """Keywords for any training.

    Attributes:
        optimizer: the optimizer: sgd, momentum, nesterov (both 0.9), or adamw.
        freeze: do not train these layers (repeatable).
        train_only: train only these layers (repeatable).
    """

    optimizer: str
    freeze: str | Sequence[str]
    train_only: str | Sequence[str]


class ClassifierKeywords(LearningKeywords, LoadingKeywords, total=False):
    """Keywords that every function that trains takes, in addition to its own; the rest as in `ModelKeywords`."""


DEFAULTS: dict[str, Any] = {
    **{"optimizer": "momentum", "freeze": (), "train_only": ()},
    **{"weights": "auto", "checkpoint": None, "key": None, "strict": None},
    **{"num_classes": None, "model_arg": ()},
    **{"device": "auto", "dtype": "float32", "seed": 0},
    **{"input_shape": (), "size": None, "mean": None, "std": None, "batch": None},
    **{"workers": None},
    **{"resume": False, "share": False},
    **{"output_kind": "auto", "labels": None},
}


def with_words(doc: str, constant: Callable[[str], Iterable[str]]) -> str:
    """Return a docstring in which `{NAMES}` is replaced by the values of the constant `NAMES` of its module."""
    return re.sub(r"\{([A-Z_]+)\}", lambda found: ", ".join(constant(found[1])), doc)


def spelled_out(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function: shared keywords in its signature, and checks of its options."""
    signature = inspect.signature(function)
    kind = function.__annotations__.get("keywords")
    kinds = {} if kind is None else kind.__args__[0].__annotations__
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kinds[name])
        for name, default in DEFAULTS.items()
        if name in kinds
    ]
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    defaults = {p.name: p.default for p in (*parameters, *shared)}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in defaults:
                if name in _ELSEWHERE:
                    raise TypeError(f"{function.__name__}() takes no '{name}': {_ELSEWHERE[name]}")
                message = f"{function.__name__}() got an unexpected keyword argument '{name}'"
                raise TypeError(with_nearest(message, name, defaults))
        try:
            return function(*args, **kwargs)
        except RecursionError as error:
            message = f"something nested too deeply, or that calls itself without end: {error}"
            raise CannotRunError(
                message, "wrap fewer modules in one another   --debug shows where"
            ) from error
        except ModelscopeError as error:
            if not invocation().argv:
                error.speak_python()
            raise

    call.__doc__ = with_words(function.__doc__ or "", function.__globals__.__getitem__)
    call.__signature__ = signature.replace(parameters=[*parameters, *shared])  # type: ignore[attr-defined]
    return call


# Keywords that went, or that other libraries have: what there is instead.
_ELSEWHERE = {
    "input_size": "input_shape=(1, 3, 224, 224) is its name here",
    "out": 'record.save("folder") writes its report',
    "plot": 'record.plot("figure.png") draws it',
}


def block_keywords(keywords: BlockKeywords) -> dict[str, bool]:
    return {"resume": keywords.get("resume", False), "share": keywords.get("share", False)}


def texts(value: Any) -> str | None:
    """Return a value as typed on the command line: `(224, 320)` as `224,320`; None unchanged."""
    if value is None or isinstance(value, str):
        return value
    return ",".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def as_tuple(texts: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return one or several patterns, hooks or other texts as a tuple."""
    if hasattr(texts, "named_modules"):
        raise UsageError(f"layers are given by name, not as {type(texts).__name__}", "layer='layer1.*'")
    return (texts,) if isinstance(texts, str) else tuple(texts or ())
