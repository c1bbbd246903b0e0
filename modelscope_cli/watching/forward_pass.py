"""The open calls of modules in a thread during a forward pass, and the functions that they call."""

import functools
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.torch_private import graph_leaves, has_compiled, insert_mode, remove_mode
from modelscope_cli.watching.model_registry import CallKey, WatchedModel
from modelscope_cli.watching.steps import is_running
from modelscope_cli.watching.uses import FunctionMode


@dataclass(slots=True)
class OpenCall:
    """A module that is running."""

    module: nn.Module
    is_innermost: bool = True  # whether no other module was called inside
    # name, index: in the model, and the number of the call; the name is None if it is not part of the model
    name: str | None = None
    index: int = 0
    has_functions: bool = False  # whether the functions that it calls directly are recorded
    functions: Counter[str] = field(default_factory=Counter)  # number of calls of each


class ForwardPass(threading.local):
    """The running forward pass of this thread."""

    def __init__(self) -> None:
        self.open: list[OpenCall] = []
        self.model: WatchedModel | None = None
        self.calls, self.channels = Counter[str](), ChannelFinder()
        self.begin(None, None, False, None)

    def begin(
        self,
        flagged: WatchedModel | None,
        model: WatchedModel | None,
        has_functions: bool,
        frame: FrameType | None,
    ) -> None:
        """Begin the pass of a root called in `frame`.

        Args:
            flagged: the model, if this pass belongs to a training.
            model: the same if the pass is recorded, else None.
            has_functions: whether the functions between the layers are recorded.
        """
        self.flagged, self.model, self.has_functions, self._frame = flagged, model, has_functions, frame
        self.is_training, self.has_entered = True, False  # the mode of the root; the first layer with weights
        self.inside: list[nn.Module] = []  # open inside the root of a pass that is not recorded
        if flagged is not None:  # else neither is used
            self.calls, self.channels = Counter[str](), ChannelFinder()

    def enter(self, module: nn.Module, name: str | None) -> None:
        """Open a call; `name` is None if the module is not part of the model."""
        call = OpenCall(module, name=name)
        if name is not None:
            call.index = self.calls[name]
            self.calls[name] += 1
            is_torchs = type(module).__module__.startswith("torch.")
            is_looked_into = is_container(module) or (not self.open and not is_torchs)
            is_selected = self.model is not None and self.model.selects(name, is_innermost=True)
            call.has_functions = self.has_functions and is_selected and is_looked_into and module.training
        if self.open:
            self.open[-1].is_innermost = False
        self.open.append(call)

    def leave(self, module: nn.Module) -> OpenCall | None:
        """Close and return a call, and close those inside it that raised; None if it is not open."""
        if not any(call.module is module for call in self.open):
            return None  # a pre-hook of the user's own raised before ours was called
        while (call := self.open.pop()).module is not module:
            pass
        if not self.open:
            self._frame = None  # it holds the inputs
        return call

    def has_left_inside(self, module: nn.Module) -> bool:
        """Close a call, and those inside it that raised, in a pass that is not recorded."""
        if not any(one is module for one in reversed(self.inside)):
            return False
        while self.inside.pop() is not module:
            pass
        return True

    def is_aside(self, module: nn.Module) -> bool:
        """Tell whether a module runs inside a pass that is neither recorded nor followed."""
        return self.flagged is None and self.open[0].module is not module

    def forget_broken(self) -> None:
        """Close the calls ended by an exception for which torch runs no hook, as it is not an `Exception`."""
        if self._frame is not None and not is_running(self._frame):
            self.open.clear()
            self.inside.clear()
            self._frame = None

    def count(self, function: str) -> CallKey | None:
        """Count a call of a function in the innermost module; return the key of its row, None if it has none."""
        call = self.open[-1]
        if not call.has_functions:
            return None
        call.functions[function] += 1
        name = f"{function}#f{call.functions[function]}"
        return f"{call.name}.{name}" if call.name else name, call.index

    @property
    def wants_functions(self) -> bool:
        return bool(self.open) and self.open[-1].has_functions


def is_container(module: nn.Module) -> bool:
    """Tell whether a module is composed of others, so that its own functions connect them.

    The only child of attention holds just a weight; a norm may hold the activation after it.
    """
    if isinstance(module, nn.MultiheadAttention) or is_norm(module):
        return False
    return any(child is not None for child in module._modules.values())  # children() takes ten times as long


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm)


def is_criterion(module: nn.Module, output: Any) -> bool:
    """Tell a loss from a layer by its output: scalars computed from the parameters of other modules.

    A model that returns its loss computes it from its own parameters; a head that does so has trained layers.
    Neither is a criterion. Its own parameters, such as the weights of its terms, do not matter.
    """
    if any(kind.__module__ == "torch.nn.modules.loss" for kind in type(module).__mro__):
        return True  # also without reduction
    if isinstance(output, Tensor) and output.ndim:
        return False
    tensors = [tensor for _, tensor in tensors_in(output)]
    if not tensors or any(tensor.ndim for tensor in tensors):
        return False
    if any(parameter.requires_grad for child in module.children() for parameter in child.parameters()):
        return False  # a head
    own, leaves = set(map(id, module.parameters())), (leaf for one in tensors for leaf in graph_leaves(one))
    return any(isinstance(leaf, nn.Parameter) and id(leaf) not in own for leaf in leaves)


_ACTIVATIONS = """celu elu gelu glu hardsigmoid hardswish hardtanh leaky_relu log_softmax logsigmoid mish prelu relu
    relu6 rrelu selu sigmoid silu softmax softplus softsign tanh"""
_NORMS = "batch_norm group_norm instance_norm layer_norm rms_norm"
_BY_DIMENSIONS = """adaptive_avg_pool adaptive_max_pool avg_pool conv conv_transpose max_pool"""
_OTHERS = (
    "add bmm cat dropout dropout1d dropout2d dropout3d einsum linear matmul scaled_dot_product_attention"
)
# Operations that change values; views, copies, shapes and indexing only move them.
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
class FunctionCall:
    """A call of one of torch's functions; `name` is the same for all spellings of an operation."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    output: Any

    def find_output(self) -> Tensor | None:
        """Return the tensor that it returned, None if it gets no row.

        A sum gets one if both terms have the shape of the result, as around a shortcut; a bias or an offset does
        not.
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
        dim = self.kwargs.get("dim", self.args[1] if len(self.args) > 1 else None)
        return dim if isinstance(dim, int) else None


def name_of(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the name of an operation with a row: `relu` for `torch.relu`, `x.relu_()`, `x.clamp(min=0)`."""
    name = _plain_name(getattr(function, "__name__", ""))
    if name == "clamp":
        low = kwargs.get("min", args[1] if len(args) > 1 else None)
        high = kwargs.get("max", args[2] if len(args) > 2 else None)
        name = "relu" if isinstance(low, int | float) and low == 0 and high is None else name
    return name if name in _OPERATIONS else None


@functools.cache
def _plain_name(name: str) -> str:
    name = name.strip("_").removesuffix("_with_indices")
    return _SAME.get(name, name)


def type_of(operation: str) -> str:
    """Return the type of an operation: `F.relu`, `add`."""
    return f"F.{operation}" if hasattr(functional, operation) else operation


class FunctionalWatch(threading.local):
    """The function mode of this thread, and whether it is on.

    Args:
        see: called with each operation that may get a row.
    """

    def __init__(self, see: Callable[[FunctionCall], None]) -> None:
        self._mode, self._see = FunctionMode(self._note), see
        self._is_on = False
        self._n_above = 0  # modes that the script had entered after this one, when it was last switched off

    def _note(self, function: Any, args: Any, kwargs: Any, output: Any) -> None:
        if (name := name_of(function, args, kwargs)) is not None:
            self._see(FunctionCall(name, args, kwargs, output))

    def begin(self) -> bool:
        """Prepare for a forward pass; return False if the mode cannot be used."""
        self.switch(False)
        self._n_above = 0
        return not has_compiled()

    def switch(self, is_on: bool) -> None:
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if is_on:
            insert_mode(self._mode, self._n_above)
        else:
            self._n_above = remove_mode(self._mode)
