"""The arguments of what builds a model: whether they fit, and what to type where they do not."""

import inspect
import re
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from modelscope_cli.errors import UsageError, nearest


def check_arguments(found: Callable[..., Any], kwargs: dict[str, Any], spec: str) -> None:
    """Refuse arguments that a builder does not take, or that are too few.

    Raises:
        UsageError: names what it takes, or a function that would make what cannot be typed (exit 2).
    """
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):  # builtins without one: calling will tell
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        unknown = next((key for key in kwargs if key not in signature.parameters), "")
        near = nearest(unknown, signature.parameters) if unknown else ""
        hint = _factory_hint(found, signature, kwargs, spec) or " ".join(
            f"--model-arg {name}={name.upper() if parameter.default is parameter.empty else parameter.default}"
            for name, parameter in signature.parameters.items()
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        )
        message = f"'{spec}' cannot be called like this: {error}{'; ' + near if near else ''}"
        raise UsageError(message, hint or "leave out --model-arg") from error


def _factory_hint(
    found: Callable[..., Any], signature: inspect.Signature, kwargs: dict[str, Any], spec: str
) -> str | None:
    """Name a function that makes what no command line can give, such as a config; None where all can be given."""
    needed = next(
        (
            name
            for name, parameter in signature.parameters.items()
            if parameter.default is parameter.empty
            and name not in kwargs
            and not _is_literal(parameter.annotation)
        ),
        None,
    )
    if needed is None:
        return None
    where = spec.rpartition(":")[0]
    module = sys.modules.get(getattr(found, "__module__", None) or "")
    own = (value for value in vars(module or ModuleType("")).values() if inspect.isfunction(value))
    ready = [one.__name__ for one in own if one.__module__ == found.__module__ and _needs_nothing(one)]
    if ready:
        return f"--model {shlex.quote(f'{where}:{ready[0]}')}   if that function makes the model"
    what = f"a function that makes the '{needed}' it needs, and returns the model"
    return f"--model {shlex.quote(f'{where}:NAME')}   {what}"


def _is_literal(annotation: Any) -> bool:
    """Tell whether a value of this annotation can be typed; nothing is known of what has none."""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    words = set(re.findall(r"[A-Za-z_.]+", name if isinstance(annotation, str | type) else str(annotation)))
    return annotation is inspect.Parameter.empty or all(
        word.rpartition(".")[2] in _LITERALS for word in words
    )


_LITERALS = frozenset(
    {"int", "float", "str", "bool", "complex", "bytes", "tuple", "list", "dict", "set", "None", "NoneType"}
    | {
        "Any",
        "Optional",
        "Union",
        "Literal",
        "Sequence",
        "Iterable",
        "Mapping",
        "Tuple",
        "List",
        "Dict",
        "Final",
    }
)


def _needs_nothing(function: Callable[..., Any]) -> bool:
    kinds = inspect.signature(function).parameters.values()
    return all(
        one.default is not one.empty or one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in kinds
    )


def defaults_of(found: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a builder's arguments; of those without one None."""
    try:
        parameters = inspect.signature(found).parameters
    except (ValueError, TypeError):
        return {}
    return {name: None if one.default is one.empty else one.default for name, one in parameters.items()}


def takes(found: Callable[..., Any], name: str) -> bool:
    """Tell whether a builder takes a keyword argument of this name."""
    try:
        parameters = inspect.signature(found).parameters
    except (ValueError, TypeError):
        return False
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


_DOWNLOADERS = {"huggingface_hub", "urllib", "requests", "httpx", "gdown", "hub.py"}


def without_download(found: Any, kwargs: dict[str, Any], error: BaseException | None) -> str | None:
    """Name the argument that makes a builder download nothing, where a download failed; None if there is none."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    if not any(_DOWNLOADERS & {*Path(frame.filename).parts} for frame in frames):
        return None
    said = [
        f"--model-arg {name}={None if isinstance(default, str) else False}"
        for name, default in defaults_of(found).items()
        if ("weights" in name or "pretrained" in name) and default and name not in kwargs
    ]
    return f"{' '.join(said)}   builds it without a download" if said else None
