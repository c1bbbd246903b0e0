"""The open calls of modules in a thread during a forward pass."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType

from torch import nn

from modelscope_cli.hooks.layers import ChannelFinder
from modelscope_cli.watching.model_registry import CallKey, WatchedModel
from modelscope_cli.watching.steps import is_running


@dataclass(slots=True)
class OpenCall:
    """A module that is running.

    Attributes:
        is_innermost: whether no other module was called inside.
        name, index: in the model, and the number of the call; the name is None if it is not part of the model.
        has_functions: whether the functions that it calls directly are recorded.
        functions: number of calls of each.
    """

    module: nn.Module
    is_innermost: bool = True
    name: str | None = None
    index: int = 0
    has_functions: bool = False
    functions: Counter[str] = field(default_factory=Counter)


class ForwardPass(threading.local):
    """The running forward pass of this thread.

    Attributes:
        flagged: the model, if this pass belongs to a training.
        model: the same if the pass is recorded, else None.
        calls: of every module, by name.
        has_functions: whether the functions between the layers are recorded.
        is_training: whether the root is in training mode.
        has_entered: whether the first layer with weights has been reached.
        inside: the open modules inside the root of a pass that is not recorded.
    """

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
        """Begin the pass of a root called in `frame`."""
        self.flagged, self.model, self.has_functions, self._frame = flagged, model, has_functions, frame
        self.is_training, self.has_entered = True, False
        self.inside: list[nn.Module] = []
        if flagged is not None:  # else neither is used
            self.calls, self.channels = Counter[str](), ChannelFinder()

    def enter(self, module: nn.Module, name: str | None) -> None:
        """Open a call; `name` is None if the module is not part of the model."""
        call = OpenCall(module, name=name)
        if name is not None:
            call.index = self.calls[name]
            self.calls[name] += 1
            is_looked_into = is_container(module) or (not self.open and not _is_torchs(module))
            is_meant = self.model is not None and self.model.means(name, is_innermost=True)
            call.has_functions = self.has_functions and is_meant and is_looked_into and module.training
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
        own = f"{function}#f{call.functions[function]}"
        return f"{call.name}.{own}" if call.name else own, call.index

    @property
    def wants_functions(self) -> bool:
        return bool(self.open) and self.open[-1].has_functions


def is_container(module: nn.Module) -> bool:
    """Tell whether a module is composed of others, so that its own functions connect them.

    The only child of attention holds just a weight; a norm may hold the activation after it.
    """
    if isinstance(module, nn.MultiheadAttention) or is_norm(module):
        return False
    return next(module.children(), None) is not None


def _is_torchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm)
