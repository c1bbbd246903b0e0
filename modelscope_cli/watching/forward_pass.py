"""The calls that are open in a thread while a model runs."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType

from torch import nn

from modelscope_cli.hooks.channels import ChannelFinder
from modelscope_cli.watching.model_registry import CallKey, WatchedModel
from modelscope_cli.watching.steps import is_running


@dataclass(slots=True)
class OpenCall:
    """A module that is running.

    Attributes:
        is_innermost: no other module was called inside.
        place: its name in the model and which call of it this is; None where its functions are not looked at.
        functions: how often each was called in it by itself.
    """

    module: nn.Module
    is_innermost: bool = True
    place: tuple[str, int] | None = None
    functions: Counter[str] = field(default_factory=Counter)


class ForwardPass(threading.local):
    """What runs in this thread.

    Attributes:
        model: None where nothing of this pass is recorded.
        calls: of every layer that was looked at, by name.
        has_functions: whether the functions between the layers are looked at.
        is_training: whether the root is in training mode.
        has_entered: whether the first layer with weights has been reached.
    """

    def __init__(self) -> None:
        self.open: list[OpenCall] = []
        self.model: WatchedModel | None = None
        self.begin(None, False, None)

    def begin(self, model: WatchedModel | None, has_functions: bool, frame: FrameType | None) -> None:
        """Begin the pass of a root that is called in `frame`."""
        self.model, self.has_functions, self._frame = model, has_functions, frame
        self.is_training, self.has_entered = True, False
        self.calls: Counter[str] = Counter()
        self.entered: Counter[str] = Counter()
        self.channels = ChannelFinder()

    def enter(self, module: nn.Module, name: str | None) -> None:
        """Open a call; `name` is None where it is not known in the model."""
        place = None
        is_looked_into = is_container(module) or not self.open
        is_meant = self.model is not None and name is not None and self.model.means(name, is_innermost=True)
        if name is not None and is_meant and is_looked_into and module.training:
            place = name, self.entered[name]
            self.entered[name] += 1
        if self.open:
            self.open[-1].is_innermost = False
        self.open.append(OpenCall(module, place=place))

    def leave(self, module: nn.Module) -> bool | None:
        """Close a call, and those inside that raised; tell whether it was innermost, None where it is not open."""
        if not any(call.module is module for call in self.open):
            return None  # a pre-hook of the user's own raised before ours was called
        while (call := self.open.pop()).module is not module:
            pass
        if not self.open:
            self._frame = None  # it holds the inputs
        return call.is_innermost

    def forget_broken(self) -> None:
        """Close what an exception ended that torch tells no hook of: it is asked for by no `except Exception`."""
        if self._frame is not None and not is_running(self._frame):
            self.open.clear()
            self._frame = None

    def count(self, function: str) -> CallKey | None:
        """Count one more call of a function in the innermost module; return the key of its row, None for none."""
        call = self.open[-1]
        if call.place is None:
            return None
        call.functions[function] += 1
        name, index = call.place
        own = f"{function}#f{call.functions[function]}"
        return f"{name}.{own}" if name else own, index

    @property
    def wants_functions(self) -> bool:
        return bool(self.open) and self.open[-1].place is not None


def is_container(module: nn.Module) -> bool:
    """Tell whether a module is made of others, so that what it computes by itself joins them.

    Attention's one child only holds a weight; a norm may hold the activation that comes after it.
    """
    if isinstance(module, nn.MultiheadAttention) or is_norm(module):
        return False
    return next(module.children(), None) is not None


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase | nn.GroupNorm | nn.LayerNorm)
