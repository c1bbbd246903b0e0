"""Whether a loss depends on the values of some parameters, also where no gradient flows back to them."""

import functools
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import insert_mode, left_alone_by_compiler, remove_mode

_READ_GRADIENT = Tensor.grad.__get__  # type: ignore[union-attr]
# Functions whose result is followed no further, and taken for a use
_LEAVING = ("numpy", "tolist", "__array__")


class Uses(TorchFunctionMode):
    """Follows parameters through the functions of torch from a forward pass to the loss.

    A parameter that a function takes, and that no loss depends on, is unused; one cut off by `detach()` or `argmax`
    is used. `.item()` is for printing, as a rule, and no use.
    """

    def __init__(self) -> None:
        super().__init__()
        # By the id of a tensor, which is held so that no other takes it: the parameters that its values depend on
        self._origins: dict[int, tuple[Tensor, frozenset[int]]] = {}
        self._taken, self._used = set[int](), set[int]()

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Follow parameters until the next loss."""
        self._origins |= {id(one): (one, frozenset([id(one)])) for one in parameters}
        if self._origins and self not in _get_current_function_mode_stack():
            insert_mode(self, None)

    def see(self, loss: Any) -> None:
        """Note what a loss depends on, and follow nothing from then on."""
        self._used |= self._origins_of(loss)
        self._origins.clear()

    def stop(self) -> None:
        """Disable this mode; not inside `Tensor.backward`, around which torch takes it off and puts it back."""
        while self in _get_current_function_mode_stack():
            remove_mode(self)

    def is_unused(self, parameter: Tensor) -> bool:
        return id(parameter) in self._taken - self._used

    def _origins_of(self, values: Any) -> frozenset[int]:
        found = (self._origins[id(x)][1] for _, x in tensors_in(values) if id(x) in self._origins)
        return frozenset[int]().union(*found)

    @functools.partial(left_alone_by_compiler, with_callees=False)
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        is_gradient = function == _READ_GRADIENT  # not a use of the parameter: `zero_grad()` reads it
        if self._origins and not is_gradient and (origins := self._origins_of((args, kwargs or {}))):
            name = getattr(function, "__name__", "")
            self._taken |= origins if name != "__get__" else frozenset()
            self._used |= origins if name in _LEAVING else frozenset()
            changed = args[:1] if name == "__setitem__" else output
            self._origins |= {id(x): (x, origins) for _, x in tensors_in(changed)}
        return output
