"""Follow what is known of the elements of tensors through a run, operator by operator, whatever the layers."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import arguments_of, base_of, operators_shown_to
from modelscope_cli.records.run import Args, Arguments, Kwargs

_RESHAPES = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias"),
    *("clone", "_to_copy", "detach", "alias", "lift_fresh", "contiguous"),
    *("dequantize", "quantize_per_tensor"),
}
_MOVES = {
    *("permute", "transpose", "t", "unsqueeze", "squeeze", "slice", "select", "split"),
    *("split_with_sizes", "unbind", "expand", "repeat", "roll", "flip", "rot90", "diagonal"),
    *("unfold", "index_select", "gather", "index", "pixel_shuffle", "pixel_unshuffle"),
    *("channel_shuffle", "constant_pad_nd", "im2col"),
}
_PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "linear": 0}  # index of the first factor
_SLIDES = re.compile(r"conv|pool|upsample|pad\dd")
_POINTWISE = re.compile(r"dropout|bernoulli|hardswish|prelu|log_sigmoid|rsub|floor_divide|where|clamp")


class Known(Protocol):
    """What is known of each element of a tensor."""

    @property
    def shape(self) -> torch.Size:
        """The shape of the tensor."""

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        """Return what is known of a tensor whose elements were moved."""

    def equals(self, other: Self) -> bool:
        """Whether the same is known of every element."""


K = TypeVar("K", bound=Known)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator that ran."""

    name: str  # without its overload and the underscore of an operator in place
    operator: Any
    args: Args
    kwargs: Kwargs
    result: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments by name."""
        return arguments_of(self.operator, self.args, self.kwargs)

    @property
    def first(self) -> Any:
        """The first result; None without any."""
        return next(iter(each(self.result)), None)


def each(value: Any) -> Any:
    """Return a list or tuple unchanged, and anything else as a tuple of one."""
    return value if isinstance(value, list | tuple) else (value,)


def distinct(values: Tensor) -> Tensor:
    """Return values with one entry along every expanded dimension: the same, and few to compare."""
    for dim in range(values.ndim):
        if values.stride(dim) == 0 and values.shape[dim] > 1:
            values = values.narrow(dim, 0, 1)
    return values


@cache
def _name_of(operator: Any) -> tuple[str, bool]:
    """Return the name of an operator of torch without its overload, and whether it works in place."""
    name: str = operator.name().partition("::")[2].partition(".")[0]
    is_in_place = name.endswith("_") and not name.endswith("__")
    return name.removesuffix("_") if is_in_place else name, is_in_place


class Follower(ABC, Generic[K]):
    """What is known of the elements of all tensors of a run that are computed from the inputs.

    There is one rule for each kind of operator; an unexpected operator, or use of one, has an unknown result.
    """

    blank: int  # the number for an element that comes from no input, such as padding

    def __init__(self) -> None:
        self._known: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    @contextmanager
    def follow(self, args: Arguments) -> Iterator[None]:
        """Follow what is computed from the arguments of a model while the block is open."""
        self._known.clear()
        self._begin([tensor for _, tensor in tensors_in(args)])
        try:
            with operators_shown_to(self._see):
                yield
        finally:
            self._known.clear()

    def find(self, tensor: Any) -> K | None:
        """Return what is known of a tensor; None if it is not computed from the input."""
        return self._known.get(tensor) if isinstance(tensor, Tensor) else None

    @abstractmethod
    def _begin(self, tensors: Sequence[Tensor]) -> None:
        """Put what is known of the inputs."""

    @abstractmethod
    def _unknown(self, shape: Sequence[int]) -> K:
        """Return what is known of the result of an unexpected operator."""

    @abstractmethod
    def _put_together(self, parts: Sequence[K | None], operation: Operation) -> K | None:
        """Concatenate or stack; None for a tensor that is not computed from the input."""

    @abstractmethod
    def _combined(self, operands: Sequence[K], operation: Operation) -> K | None:
        """Combine operands element by element."""

    @abstractmethod
    def _multiplied(self, left: K | None, right: K | None, shape: Sequence[int]) -> K | None:
        """Multiply matrices."""

    @abstractmethod
    def _attended(self, factors: Sequence[K | None], shape: Sequence[int]) -> K | None:
        """Attend with queries, keys and values."""

    @abstractmethod
    def _slid(self, first: K, operation: Operation) -> K | None:
        """Convolve, pool, resample or pad with values of the map."""

    @abstractmethod
    def _normalised(self, first: K, operation: Operation) -> K | None:
        """Normalise, or take a softmax."""

    @abstractmethod
    def _reduced(self, first: K, dims: Sequence[int], shape: Sequence[int]) -> K | None:
        """Reduce along some dimensions, as a mean does."""

    def _put(self, tensor: Tensor, known: K) -> None:
        self._known[tensor] = known

    def _see(self, operator: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        operands = [
            known for arg in (*args, *kwargs.values()) for one in each(arg) if (known := self.find(one))
        ]
        if not operands:
            return
        name, is_in_place = _name_of(operator)
        operation = Operation(name, operator, args, kwargs, result)
        if not isinstance(operation.first, Tensor):
            return
        before = self.find(args[0])
        try:
            found = self._rule(operation, before, operands)
        except Exception:  # an unexpected use of an operator
            found = None
        for n, tensor in enumerate(each(result)):
            if isinstance(tensor, Tensor):
                known = found[n] if isinstance(found, list) else found if n == 0 else None
                if known is None or known.shape != tensor.shape:
                    known = self._unknown(tensor.shape)
                self._put(tensor, known)
        base = base_of(operation.first) if is_in_place else None
        if base is not None and not (before and before.equals(self._known[operation.first])):
            self._put(base, self._unknown(base.shape))  # a part of it was written to

    def _rule(self, operation: Operation, first: K | None, operands: Sequence[K]) -> K | list[K] | None:
        name, args, shape = operation.name, operation.args, operation.first.shape
        if name in _PRODUCTS:
            start = _PRODUCTS[name]
            return self._multiplied(self.find(args[start]), self.find(args[start + 1]), shape)
        if name in ("cat", "stack"):
            return self._put_together([self.find(one) for one in args[0]], operation)
        if name == "copy":
            source = self.find(args[1])
            return source.moved(lambda values: values.expand(shape)) if source else None
        if name.startswith("_scaled_dot_product"):
            return self._attended([self.find(one) for one in args[:3]], shape)
        is_pointwise = torch.Tag.pointwise in operation.operator.tags or _POINTWISE.search(name)
        if first is None:
            return self._combined(operands, operation) if is_pointwise else None
        if name in _RESHAPES:
            return self._reshaped(first, shape)
        if name in _MOVES:
            return self._moved(first, operation)
        if _SLIDES.search(name):
            return self._slid(first, operation)
        if "norm" in name or "softmax" in name:
            return self._normalised(first, operation)
        if is_pointwise:
            return self._combined(operands, operation)
        dims = operation.arguments.get("dim")
        return self._reduced(first, each(dims), shape) if dims is not None else None

    def _reshaped(self, first: K, shape: Sequence[int]) -> K:
        return first.moved(lambda values: values.reshape(tuple(shape)))

    def _moved(self, first: K, operation: Operation) -> K | list[K]:
        """Move what is known as the operator moved the elements."""
        args = [_on_cpu(arg) for arg in operation.args[1:]]
        kwargs = {key: _on_cpu(value) for key, value in operation.kwargs.items()}

        def move(values: Tensor, part: int | None = None) -> Tensor:
            if operation.name == "constant_pad_nd":
                return operation.operator(values, args[0], self.blank)
            if operation.name == "im2col":  # which pads with zeros and takes no whole numbers
                moved = operation.operator((values - self.blank).double(), *args, **kwargs)
                return moved.to(values.dtype) + self.blank
            moved = operation.operator(values, *args, **kwargs)
            return moved if part is None else moved[part]

        if isinstance(operation.result, Tensor):
            return first.moved(move)
        return [first.moved(partial(move, part=part)) for part in range(len(operation.result))]


def _on_cpu(value: Any) -> Any:
    if isinstance(value, list):
        return [_on_cpu(one) for one in value]
    return value.cpu() if isinstance(value, Tensor) else value
