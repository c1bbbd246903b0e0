"""Whether a loss depends on some parameters, or on the output of a model, also where no gradient flows back."""

import functools
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import has_compiled, insert_mode, left_alone_by_compiler, remove_mode

_READ_GRADIENT = Tensor.grad.__get__  # type: ignore[union-attr]
# Functions whose result is followed no further, and taken for a use
_LEAVING = ("numpy", "tolist", "__array__")
# Functions that take the shape, type or device of their first argument, or of those after the first
_LIKE_FIRST, _LIKE_OTHERS = re.compile(r".+_like|new_.+"), re.compile(r".+_as|to|type")
# Functions that make a prediction or compare it with its target; a generated image goes through none of them
_JUDGING = re.compile("_*(argmax|max|topk|argsort|sort|[nlg]e|[lg]t|eq|abs|square|pow)_*")


class FunctionMode(TorchFunctionMode):
    """Calls `see(function, args, kwargs, output)` after every function of torch while enabled."""

    def __init__(self, see: Callable[[Any, Any, Any, Any], object]) -> None:
        super().__init__()
        self._see = see

    def start(self) -> None:
        """Enable this mode, below those of the script."""
        if self not in _get_current_function_mode_stack():
            insert_mode(self, None)

    def stop(self) -> None:
        """Disable this mode; not inside `Tensor.backward`, around which torch takes it off and puts it back."""
        while self in _get_current_function_mode_stack():
            remove_mode(self)

    @functools.partial(left_alone_by_compiler, with_callees=False)
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is getattr(functional, getattr(function, "__name__", ""), None):
            function = getattr(function, "__wrapped__", function)  # an observed criterion calls this
        output = function(*args, **(kwargs or {}))
        self._see(function, args, kwargs or {}, output)
        return output


class Uses(FunctionMode):
    """Follows parameters through the functions of torch from a forward pass to the loss.

    A parameter that a function takes, and that no loss depends on, is unused; one cut off by `detach()` or `argmax`
    is used. `.item()` is for printing, as a rule, and no use.
    """

    def __init__(self) -> None:
        super().__init__(self._note)
        # By the id of a tensor, which is held so that no other takes it: the parameters that its values depend on
        self._origins: dict[int, tuple[Tensor, frozenset[int]]] = {}
        self._taken, self._used = set[int](), set[int]()

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Follow parameters until the next loss."""
        self._origins |= {id(one): (one, frozenset([id(one)])) for one in parameters}
        if self._origins:
            self.start()

    def see(self, loss: Any) -> None:
        """Note what a loss depends on, and follow nothing from then on."""
        self._used |= self._origins_of(loss)
        self._origins.clear()

    def is_unused(self, parameter: Tensor) -> bool:
        return id(parameter) in self._taken - self._used

    def _origins_of(self, values: Any) -> frozenset[int]:
        found = (self._origins[id(x)][1] for _, x in tensors_in(values) if id(x) in self._origins)
        return frozenset[int]().union(*found)

    def _note(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        is_gradient = function == _READ_GRADIENT  # not a use of the parameter: `zero_grad()` reads it
        if self._origins and not is_gradient and (origins := self._origins_of((args, kwargs))):
            name = getattr(function, "__name__", "")
            self._taken |= origins if name != "__get__" else frozenset()
            self._used |= origins if name in _LEAVING else frozenset()
            changed = args[:1] if name == "__setitem__" else output
            self._origins |= {id(x): (x, origins) for _, x in tensors_in(changed)}


class Outputs(FunctionMode):
    """Follows the outputs of models to criteria where no graph tells: without gradients, or detached.

    An output is known by the address of its memory, which views and arrays of NumPy share.

    Args:
        judged: called once for each pass without gradients whose output is ranked or compared.
    """

    def __init__(self, judged: Callable[[], None]) -> None:
        super().__init__(self._note)
        self._judged, self._is_judged = judged, False
        self._made: dict[int, StorageWeakRef] = {}
        self.running: nn.Module | None = None  # the outermost model, inside which nothing is followed

    def begin(self, module: nn.Module) -> None:
        """See a module with parameters begin to run."""
        if self.running is None:
            self.stop()
            self.running, self._is_judged = module, False
            known = () if torch.is_grad_enabled() else self._made.items()
            self._made = {address: one for address, one in known if not one.expired()}

    def end(self, module: nn.Module, output: Any) -> None:
        """Take the output of a model."""
        if module is self.running:
            self.running = None
            self._take(tensors_in(output))
            if not (torch.is_grad_enabled() or has_compiled()):
                self.start()

    def reach(self, values: Any) -> bool:
        """Tell whether any of some tensors depends on the output of a model, as far as it was followed."""
        tensors = [x for _, x in tensors_in(values)]
        made = [self._made.get(_address(x)) for x in tensors]
        is_made = any(one is not None and not one.expired() for one in made)
        return is_made or self.running is not None or any(x.requires_grad for x in tensors)

    def _take(self, tensors: list[tuple[str, Tensor]]) -> None:
        own = {_address(x): x for _, x in tensors}
        self._made |= {key: StorageWeakRef(x.untyped_storage()) for key, x in own.items() if key}

    def _note(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        name = getattr(function, "__name__", "")
        changed = tensors_in(output if name != "__setitem__" else args[0])
        if _LIKE_FIRST.fullmatch(name):
            args = args[1:]
        elif _LIKE_OTHERS.fullmatch(name):
            args = args[:1]
        if changed and self.reach([*args, *kwargs.values()]):
            self._take(changed)
            if _JUDGING.fullmatch(name) and not self._is_judged:
                self._is_judged = True
                self._judged()


def _address(x: Tensor) -> int:
    """Return where the values of a tensor are; 0 for one without memory of its own, such as a sparse one."""
    try:
        return x.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
