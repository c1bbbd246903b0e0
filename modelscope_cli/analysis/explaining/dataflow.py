"""Trace the values that depend on the image through a forward pass, and cut the graph at one of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.weak import WeakTensorKeyDictionary

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.records.run import Args, Kwargs

_ENDS = ("detach", "data", "grad")  # no gradient goes back through these
_HEADS = ("linear", "conv", "matmul", "mm", "einsum", "bilinear")


@dataclass(frozen=True, slots=True)
class ProducedValue:
    """A call of a torch function that computed a floating-point tensor from the image."""

    function: str  # its name without a module, such as `conv2d`
    reads: tuple[int, ...]  # the numbers of its inputs; 0 is the image
    is_weighted: bool  # whether it multiplies them by a matrix or kernel that does not depend on the image


@dataclass(frozen=True, slots=True)
class ValuePosition:
    """One value of a pass: output `output` of call `call`, both counted from 0.

    Only calls that depend on the image count, so caches filled by the first pass do not change the numbers.
    """

    call: int
    output: int
    function: str


def values_in(output: Any) -> list[Tensor]:
    """Return the tensors of an output that can have a gradient."""
    return [tensor for _, tensor in tensors_in(output) if tensor.is_floating_point() or tensor.is_complex()]


class Dataflow(TorchFunctionMode):
    """Numbers the values computed from the image: floating-point tensors, in the order of computation.

    No tensor is stored. Detached values do not count.
    """

    def __init__(self, images: Any) -> None:
        super().__init__()
        self.calls: list[ProducedValue] = []  # all calls so far
        # places, shapes: the position and shape of each value by number
        self.places: dict[int, ValuePosition] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        # The first function whose outputs pass no gradient to the image; None if there is none
        self.ended: str | None = None
        self._numbers: Any = WeakTensorKeyDictionary()
        for _, image in tensors_in(images):
            self._numbers[image] = 0
            self.shapes[0] = tuple(image.shape)

    def number_of(self, tensor: Tensor) -> int | None:
        """Return the number of the value that a tensor holds; None if it does not depend on the image."""
        return self._numbers.get(tensor)

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        kwargs = kwargs or {}
        given = [tensor for _, tensor in tensors_in((args, kwargs))]
        reads = tuple(n for tensor in given if (n := self.number_of(tensor)) is not None)
        if not reads:
            return func(*args, **kwargs)
        before = {id(tensor): version_of(tensor) for tensor in given}
        function = resolve_name(getattr(func, "overloadpacket", func)) or ""
        function = function.removesuffix(".__get__").rpartition(".")[2]
        output = func(*args, **kwargs)
        made = values_in(output)
        if self.ended is None and (function in _ENDS or (not made and tensors_in(output))):
            self.ended = function
        changed = [t for t in given if version_of(t) != before[id(t)] and all(t is not new for new in made)]
        is_new = changed or any(before.get(id(tensor)) != version_of(tensor) for tensor in made)
        if function in _ENDS or not is_new:
            return output
        output = self.reached(len(self.calls), output)
        is_weighted = any(word in function for word in _HEADS) and any(
            tensor.ndim > 1 and self.number_of(tensor) is None for tensor in given
        )
        self.calls.append(ProducedValue(function, reads, is_weighted))
        made = values_in(output)
        for n, tensor in enumerate((*made, *changed)):
            number = len(self.shapes)
            self._numbers[tensor] = number
            self.shapes[number] = tuple(tensor.shape)
            self.places[number] = ValuePosition(len(self.calls) - 1, n if n < len(made) else -1, function)
        return output

    def reached(self, call: int, output: Any) -> Any:
        """Return the replacement of a call's output."""
        return output


class Cut(Dataflow):
    """Replaces one value of the pass by a leaf, at which the backward pass ends."""

    def __init__(self, images: Any, place: ValuePosition, *, is_blank: bool = False) -> None:
        super().__init__(images)
        # The value, or zeros, with `requires_grad`; None until the pass reaches it
        self.leaf: Tensor | None = None
        self._place, self._is_blank = place, is_blank

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if self.leaf is not None:
            return func(*args, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs)

    def reached(self, call: int, output: Any) -> Any:
        if call != self._place.call:
            return output
        target = values_in(output)[self._place.output]

        def replaced(path: str, tensor: Tensor) -> Tensor:
            if tensor is not target:
                return tensor
            value = tensor.detach()
            self.leaf = (torch.zeros_like(value) if self._is_blank else value).requires_grad_()
            return self.leaf.clone()  # later in-place operations would fail on a leaf

        return map_tensors(output, replaced)

    def seen(self) -> Tensor:
        if self.leaf is None:
            missed = f"it did not reach '{self._place.function}'"
            message = f"the model takes a different path in each pass: {missed}"
            raise CannotRunError(message, "--method integrated-gradients   needs no layer")
        return self.leaf
