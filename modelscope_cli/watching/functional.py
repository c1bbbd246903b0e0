"""Functions of torch that a module calls between its layers: `F.relu`, `+`, `torch.cat`.

A function mode sees them, and hands on what they return. It is on only while the innermost open module is one whose
own functions matter: within a layer of torch's, within a part that does not train (whose fast paths a mode would
switch off) and around whatever is compiled, it is not there at all.
"""

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from modelscope_cli.hooks.torch_private import (
    can_move_modes,
    has_compiled,
    insert_mode,
    left_alone_by_compiler,
    remove_mode,
)

MOST_CALLS = 16  # of one function in one call of a module; a loop over time would make a row of every turn

_ACTIVATIONS = """celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish prelu relu
    relu6 rrelu selu sigmoid silu softmax softplus softsign tanh"""
_NORMS = "batch_norm group_norm instance_norm layer_norm rms_norm"
_BY_DIMENSIONS = """adaptive_avg_pool adaptive_max_pool avg_pool conv conv_transpose max_pool"""
_OTHERS = (
    "add bmm cat dropout dropout1d dropout2d dropout3d einsum linear matmul scaled_dot_product_attention"
)
# What changes values; views, copies, shapes and indexing only move them.
_OPERATIONS = frozenset(
    [f"{stem}{n}d" for stem in _BY_DIMENSIONS.split() for n in (1, 2, 3)]
    + f"{_ACTIVATIONS} {_NORMS} {_OTHERS}".split()
)
_SAME = {
    "clamp_min": "clamp",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "log_sigmoid": "logsigmoid",
    "mm": "matmul",
    "special_expit": "sigmoid",
    "special_log_softmax": "log_softmax",
    "special_softmax": "softmax",
}


@dataclass(frozen=True, slots=True)
class FunctionOperation:
    """What gave an output.

    Attributes:
        type: the class of a layer, or `type_of` a function.
        channel_dim: where the channels of the output are.
        dim: along which dimension it is a softmax.
    """

    type: str
    channel_dim: int | None
    dim: int | None


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of one of torch's functions; `name` is that of the operation, whichever way it was called."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    output: Any

    def find_output(self) -> Tensor | None:
        """Return the tensor that it made, None where this is not worth a row.

        A sum is where it joins two tensors of the size of the result, as around a shortcut; a bias is not, nor an
        offset.
        """
        output = self.output
        x = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(x, Tensor) or not x.ndim or not x.is_floating_point():
            return None
        if self.name == "add" and not all(
            isinstance(one, Tensor) and one.shape == x.shape for one in self.args[:2]
        ):
            return None
        return x

    @property
    def dim(self) -> int | None:
        """Along which dimension it is a softmax."""
        dim = self.kwargs.get("dim", self.args[1] if len(self.args) > 1 else None)
        return dim if isinstance(dim, int) else None


def name_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the name of an operation that may be a row: `relu` of `torch.relu`, `x.relu_()`, `x.clamp(min=0)`."""
    name = _plain_name(getattr(function, "__name__", ""))
    if name == "clamp" and _is_from_zero(args, kwargs):
        name = "relu"
    return name if name in _OPERATIONS else None


@functools.cache
def _plain_name(name: str) -> str:
    name = name.strip("_").removesuffix("_with_indices")
    return _SAME.get(name, name)


def type_of(operation: str) -> str:
    """Return what stands in the column of the type: `F.relu`, `add`."""
    return f"F.{operation}" if hasattr(functional, operation) else operation


def _is_from_zero(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    low = kwargs.get("min", args[1] if len(args) > 1 else None)
    high = kwargs.get("max", args[2] if len(args) > 2 else None)
    return isinstance(low, int | float) and low == 0 and high is None


class _FunctionMode(TorchFunctionMode):
    def __init__(self, see: Callable[[FunctionCall], None]) -> None:
        super().__init__()
        self._see = see

    @functools.partial(left_alone_by_compiler, with_callees=False)
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        name = name_of(function, args, kwargs)
        if name is not None:
            self._see(FunctionCall(name, args, kwargs, output))
        return output


class FunctionalWatch(threading.local):
    """The mode of this thread, and whether it is on.

    Args:
        see: is given each call that may be a row.
    """

    def __init__(self, see: Callable[[FunctionCall], None]) -> None:
        self._mode = _FunctionMode(see)
        self._is_on = False
        self._n_above = 0  # modes that the script entered after ours, when it was last switched off

    def begin(self) -> bool:
        """Make ready for a forward pass; False where nothing may look on."""
        self.switch(False)
        self._n_above = 0
        return can_move_modes() and not has_compiled()

    def switch(self, is_on: bool) -> None:
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if is_on:
            insert_mode(self._mode, self._n_above)
        else:
            self._n_above = remove_mode(self._mode)
