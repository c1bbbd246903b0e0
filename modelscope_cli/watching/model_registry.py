"""Which module is which layer of which model. A model is known from the moment it first runs."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.patterns import match_layers, parse_pattern
from modelscope_cli.watching.finite_flags import FiniteFlags
from modelscope_cli.watching.step_sums import StepSums

# What wraps a model and is none of its layers, by class name: torch's own modules need not be imported to ask.
_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}

CallKey = tuple[str, int]  # a layer's name, and which of its calls


@dataclass(slots=True)
class WatchedModel:
    """A model that runs in the script.

    Attributes:
        label: its class, with `#2` for the second of that class.
        step: optimizer steps its weights have seen.
        is_recording: whether the step that is being prepared is recorded.
        n_passes: recorded forward passes since the last step.
        sums: what they gave, in the order of calls.
        flags: what of the step that is being prepared was finite.
        wanted: names of layers that `--layer` means; None for every innermost call.
    """

    label: str
    root: "weakref.ref[nn.Module]"
    wanted: frozenset[str] | None = None
    step: int = 0
    is_recording: bool = True
    n_passes: int = 0
    sums: dict[CallKey, StepSums] = field(default_factory=dict)
    types: dict[CallKey, str] = field(default_factory=dict)
    flags: FiniteFlags = field(default_factory=FiniteFlags)

    def begin_step(self, step: int, is_recording: bool) -> None:
        """Forget the passes so far: those to come belong to this step."""
        self.step, self.is_recording, self.n_passes, self.sums = step, is_recording, 0, {}
        self.flags = FiniteFlags()

    def means(self, name: str, is_innermost: bool) -> bool:
        return is_innermost if self.wanted is None else name in self.wanted


def peel(module: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of data parallelism and compilation."""
    while (attribute := _WRAPPERS.get(type(module).__name__)) and isinstance(
        inner := getattr(module, attribute, None), nn.Module
    ):
        module = inner
    return module


def is_wrapper(module: nn.Module) -> bool:
    return peel(module) is not module


class ModelRegistry:
    """Every model seen so far. It keeps none alive.

    Args:
        patterns: `--layer`.
        only: the models that are meant; None for every one that runs.
    """

    def __init__(self, patterns: tuple[str, ...], only: Sequence[nn.Module] | None = None) -> None:
        self.models: list[WatchedModel] = []
        self.is_closed = False
        self._patterns = patterns
        self._places: dict[int, tuple[weakref.ref[nn.Module], WatchedModel, str]] = {}
        for model in map(peel, only or ()):
            if self.find(model) is None:
                self.register(model)
        self.is_closed = only is not None

    def find(self, module: nn.Module) -> tuple[WatchedModel, str] | None:
        """Return a module's model and its name there; None where it was never seen in one."""
        place = self._places.get(id(module))
        return (place[1], place[2]) if place is not None and place[0]() is module else None

    def register(self, root: nn.Module) -> WatchedModel | None:
        """Take a module that runs outside of any other for a model, or look again at what it is made of.

        A module without parameters, such as a loss, is none.
        """
        if next(root.parameters(), None) is None:
            return None
        known = self.find(root)
        if self.is_closed and not known:
            return None
        model = known[0] if known and not known[1] else self._new(root)
        for layer, module in list_layers(root):
            part = self.find(module)
            if part is not None and part[0] is not model and not part[1]:
                self.models.remove(part[0])  # it ran by itself before, and was taken for a model
            self._places[id(module)] = (weakref.ref(module), model, layer.name)
        return model

    def _new(self, root: nn.Module) -> WatchedModel:
        kind = type(root).__name__
        n_alike = sum(model.label.partition("#")[0] == kind for model in self.models)
        model = WatchedModel(f"{kind}#{n_alike + 1}" if n_alike else kind, weakref.ref(root))
        model.wanted = self._meant(root) if self._patterns else None
        self.models.append(model)
        return model

    def _meant(self, root: nn.Module) -> frozenset[str]:
        every = [layer for layer, _ in list_layers(root)]
        meant: set[str] = set()
        for pattern in map(parse_pattern, self._patterns):
            try:
                meant |= {layer.name for layer in match_layers(pattern, every)}
            except UsageError:
                continue  # another model may have it; see `check_patterns`
        return frozenset(meant)

    def check_patterns(self) -> None:
        """Refuse `--layer` once there is a model to train and nothing in any model is meant.

        Raises:
            UsageError: names what is there (exit 2).
        """
        if not self._patterns or any(model.wanted for model in self.models):
            return
        for model in self.models:
            root = model.root()
            if root is not None:
                match_layers(parse_pattern(self._patterns[0]), [layer for layer, _ in list_layers(root)])

    def parameter_names(self) -> dict[int, tuple[str, str]]:
        """Return `(model, qualified name)` of every parameter by its id."""
        return {
            id(parameter): (model.label, name)
            for model in reversed(self.models)
            if (root := model.root()) is not None
            for name, parameter in root.named_parameters()
        }
