"""How a forward wants to be called, read from its signature: in order, by name, or with one dict."""

import inspect
import re
import shlex
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from modelscope_cli.errors import UsageError, nearest
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.inputs.stated import stated_shape
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import Arguments

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_TEXT = "int64:1,16"
Parameters = dict[str, inspect.Parameter]


def arrange_named(module: nn.Module | None, named: Mapping[str, Any]) -> Arguments:
    """Return named inputs as what the forward takes: keywords, or the dict itself as the only argument of one that
    takes a single one of another name.

    Raises:
        UsageError: a name that the forward does not have, or one that it needs and was not given (exit 2).
    """
    given = dict(named)
    parameters = _parameters(module)
    if parameters is None:
        return given
    if _takes_a_dict(parameters, given):
        return (given,)
    known = _known(parameters)
    strange = [name for name in given if known is not None and name not in known]
    if strange:
        assert known is not None
        names = [name for name in known if name in parameters] or list(known)
        near = nearest(strange[0], known)
        message = f"the forward of {type(module).__name__} has no argument '{strange[0]}'"
        message += f" ({near})" if near else ""
        raise UsageError(f"{message}; it has {some(names, 12)}", suggestion(module))
    missing = [name for name in _required(parameters) if name not in given]
    if missing:
        message = f"the forward of {type(module).__name__} needs {some(missing, 8)} as well"
        raise UsageError(message, suggestion(module))
    return given


def check_call(module: nn.Module, args: Arguments, file: str | None = None) -> None:
    """Refuse arguments in order that cannot be meant for this forward, before it raises a TypeError of Python's.

    Args:
        file: the image that they were made from, for the hint.

    Raises:
        UsageError: it needs more arguments, or some by name, or its first takes integers and is given an image (2).
    """
    parameters = _parameters(module)
    # A hook that runs before may bring what is missing.
    if isinstance(args, dict) or parameters is None or module._forward_pre_hooks:
        return
    ordered = [
        p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY and p.kind not in _VARIADIC
    ]
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    missing = [name for name in _required(parameters) if name not in ordered[: len(args)]]
    what = f"the forward of {type(module).__name__}"
    if missing:
        raise UsageError(f"{what} needs {some(missing, 8)} as well", suggestion(module, file))
    if len(args) > len(ordered) and not is_open:
        message = f"{what} takes {len(ordered)} arguments in order, not {len(args)}"
        raise UsageError(message, suggestion(module, file))
    for name, arg in zip(ordered, args, strict=False):
        floats = [tensor for _, tensor in tensors_in(arg) if tensor.is_floating_point()]
        if floats and name == "input_ids":
            message = f"the first argument of {what} is '{name}', which takes integers, not an image"
            raise UsageError(message, suggestion(module, file))


def suggestion(module: nn.Module | None, file: str | None = None) -> str:
    """Return a line of `--input` that this forward takes, with an image where it takes one."""
    parameters = _parameters(module) or {}
    names = [name for name, p in parameters.items() if p.kind not in _VARIADIC and _is_needed(p)]
    names = names or [name for name, p in parameters.items() if p.kind not in _VARIADIC][:1] or ["NAME"]
    shape = ",".join(map(str, (1, *(stated_shape(module) or (3, 224, 224)))))
    words = []
    for name in names:
        spec = shape
        if name in parameters and _is_text(parameters[name]):
            spec = _TEXT
        elif file is not None:
            spec, file = file, None
        words.append(f"--input {shlex.quote(f'{name}={spec}')}")
    return " ".join(words)


def _is_needed(parameter: inspect.Parameter) -> bool:
    # transformers gives every argument a default, also those that no forward does without.
    return parameter.default is parameter.empty or parameter.name in ("input_ids", "pixel_values")


def _parameters(module: nn.Module | None) -> Parameters | None:
    """Return the parameters of the forward; None where they cannot be known."""
    try:
        return None if module is None else dict(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):  # compiled or written in C
        return None


def _required(parameters: Parameters) -> list[str]:
    return [name for name, p in parameters.items() if p.default is p.empty and p.kind not in _VARIADIC]


def _known(parameters: Parameters) -> list[str] | None:
    """Return every name that may be given; None where any may."""
    names = [
        name
        for name, p in parameters.items()
        if p.kind not in (*_VARIADIC, inspect.Parameter.POSITIONAL_ONLY)
    ]
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            kinds = typing.get_args(parameter.annotation)  # of `**kwargs: Unpack[SomeTypedDict]`
            if not kinds or not typing.is_typeddict(kinds[0]):
                return None
            names += kinds[0].__annotations__
    return names


def _takes_a_dict(parameters: Parameters, names: Iterable[str]) -> bool:
    """Tell a forward that takes one argument, which is not called like any of the inputs and is not a tensor."""
    ordered = [p for p in parameters.values() if p.kind not in (*_VARIADIC, inspect.Parameter.KEYWORD_ONLY)]
    required = [p for p in ordered if p.default is p.empty]
    only = required or ordered
    if len(only) != 1 or any(name in parameters for name in names):
        return False
    text = _annotation(only[0])
    return "Tensor" not in text or re.search("dict|mapping", text, re.IGNORECASE) is not None


def _is_text(parameter: inspect.Parameter) -> bool:
    is_called_so = re.search("(^|_)(ids|tokens?|text|words)$", parameter.name) is not None
    return is_called_so or re.search("(Long|Int)Tensor", _annotation(parameter)) is not None


def _annotation(parameter: inspect.Parameter) -> str:
    if parameter.annotation is parameter.empty:
        return ""
    return inspect.formatannotation(parameter.annotation)
