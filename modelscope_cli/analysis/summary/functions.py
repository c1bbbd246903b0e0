"""Every function of torch that is called, with the tensors that go in and come out."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from modelscope_cli.hooks.torch_private import version_of

See = Callable[[str, list[Tensor], list[Tensor], Any], None]


class Functions(TorchFunctionMode):
    """While open, calls `see(name, given, written, result)` after every function of torch that runs in this thread:
    with the tensors it was given, those of them that it has written to in place, and what it gave."""

    def __init__(self, see: See) -> None:
        super().__init__()
        self._see = see

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func)).partition(".")[0]
        given = [(tensor, version_of(tensor)) for tensor in tensors_among((args, kwargs))]
        result = func(*args, **kwargs)
        written = [tensor for tensor, n in given if version_of(tensor) != n]
        if given and given[0][0].is_inference() and _writes(name, kwargs):  # such are not counted
            written.append(given[0][0])
        self._see(name, [tensor for tensor, _ in given], written, result)
        return result


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    """Tell by its name a function that writes to the first tensor it is given."""
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or name.startswith("__i") or name == "__setitem__" or kwargs.get("inplace") is True


def tensors_among(value: Any) -> list[Tensor]:
    """Return the tensors among the arguments of a function, or what it returns: it knows no other containers."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [tensor for one in value for tensor in tensors_among(one)] if isinstance(value, list | tuple) else []
    )


def plain_name(name: str) -> str:
    """Return what people call a function: `add` for `add_` and `__radd__`, `index` for `__getitem__`."""
    if name.startswith("__") and name.endswith("__"):
        word = name.strip("_")
        return _WORDS.get(word, word)
    return name.rstrip("_") or name


_WORDS = {
    **{f"{prefix}{word}": word for word in ("add", "sub", "mul", "matmul", "pow") for prefix in ("r", "i")},
    **{"truediv": "div", "rtruediv": "div", "itruediv": "div", "rdiv": "div", "idiv": "div"},
    **{"getitem": "index", "setitem": "write", "get": "view"},
}
