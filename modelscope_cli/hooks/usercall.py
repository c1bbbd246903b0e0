"""Call a function of the user's as PyTorch would, check its answer, and notice what it wrote to in place."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.spec import HookSpec
from modelscope_cli.hooks.tally import Tally, differs
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.records.naming import dtype_name, with_article

# Called with a tensor that the function wrote to, and the version it had before.
Moved = Callable[[Tensor, int], None]


def call_function(
    spec: HookSpec,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    given: Any,
    where: str,
    tally: Tally,
    moved: Moved,
) -> Any:
    """Return what the function makes of `given`: its answer, or `given` itself where it answers None.

    Args:
        arguments: what PyTorch calls a hook of this kind with; `given` is one of them.
        where: the call in words, for messages.
        moved: is told of every tensor among the arguments whose values the function changed.

    Raises:
        CannotRunError: its answer is not made like `given` (exit 4). What the function raises comes out as it is.
    """
    before = [
        (tensor, version_of(tensor), tensor.detach().clone()) for _, tensor in tensors_in(list(arguments))
    ]
    answer = function(*arguments)
    for tensor, version, values in before:
        if bool(differs(values, tensor.detach()).any()):
            moved(tensor, version)
    if answer is None:
        result = given
    elif spec.kind in ("pre", "full-backward") and not isinstance(answer, tuple):
        result = (answer,)
    else:
        result = answer
    if _form(result) != _form(given):
        raise CannotRunError(
            f"--hook '{spec}': at {where} {_source(function)} returned {_words(answer)}, not {_words(given)}",
            "return None to keep it, or a new one of the same shape and dtype",
        )
    values_of = {id(tensor): values for tensor, _, values in before}
    for (_, old), (_, new) in zip(tensors_in(given), tensors_in(result), strict=True):
        tally.compare(values_of[id(old)], new.detach())
    return result


def _form(value: Any) -> Any:
    return [(path, tuple(tensor.shape), tensor.dtype, tensor.device) for path, tensor in tensors_in(value)]


def _words(value: Any) -> str:
    """Describe a value: its type, and the tensors in it."""
    shapes = [
        f"{'x'.join(map(str, t.shape)) or 'scalar'} {dtype_name(t.dtype)}" for _, t in tensors_in(value)
    ]
    if isinstance(value, Tensor):
        return f"a tensor of {shapes[0]}"
    return with_article(type(value).__name__) + (f" of {', '.join(shapes)}" if shapes else "")


def _source(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else "its function"
