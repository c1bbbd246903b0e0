"""The models of a process and their layers. A model is registered when it first runs."""

import functools
import re
import statistics
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.fetch import fetch
from modelscope_cli.hooks.layers import list_layers, tensors_in
from modelscope_cli.hooks.patterns import Layer, explain, match_layers, parse_pattern
from modelscope_cli.hooks.torch_private import left_alone_by_compiler
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.watch import LISTED, MADE_AGAIN, MOVING_NORMS
from modelscope_cli.source_location import frame_of_caller, place_of_caller, walk_named
from modelscope_cli.watching.finite_flags import FiniteFlags, Suspects
from modelscope_cli.watching.model_inputs import EnteringKey, EnteringSums
from modelscope_cli.watching.modes import layers_in_mode, unregistered_in
from modelscope_cli.watching.step_sums import StepSums

# Wrappers of a model, by the name of their class or a base class, so that nothing has to be imported. Any other
# module that only calls its child is part of the user's model, and so is its name.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "ActivationWrapper": "_checkpoint_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "AveragedModel": "module",
    "DeepSpeedEngine": "module",
    "_FabricModule": "_forward_module",  # of Lightning
    "TrainingTask": "trainable_module",  # of timm
}

_TARGET = re.compile(r"(?i)(?<![a-z])(target|targ|tgt)(?![a-z])")
_FEW, _OFTEN = 10, 0.4  # passes that compute targets; share of all passes, or of the steps
MOST_SEEN = 64  # passes without gradients whose input is recorded

CallKey = tuple[str, int]  # name of a layer, number of the call


@dataclass(slots=True, eq=False)
class WatchedModel:
    """A model that runs in the script."""

    label: str  # its class, with `#2` for the second of that class, or its variable; see `_variable_of`
    root: "weakref.ref[nn.Module]"
    wanted: frozenset[str] | None = None  # names of the layers of `--layer`; None for every innermost call
    made: str | None = None  # the line that makes it
    shapes: tuple[torch.Size, ...] = ()  # of its parameters
    n_again: int = 0  # how often it was made again, from new weights, after it was trained
    step: int = 0  # optimizer steps its weights have seen
    is_recording: bool = True  # whether the current step is recorded
    is_followed: bool = True  # whether its passes are traced at all
    has_missed: bool = False  # whether steps just before this one were only counted
    is_stepped: bool = False  # whether an optimizer of `torch.optim` has stepped its weights
    has_run: bool = False  # with gradients since the last backward pass
    sums: dict[CallKey, StepSums] = field(default_factory=dict)  # over the outputs, in the order of calls
    types: dict[CallKey, str] = field(default_factory=dict)
    flags: FiniteFlags = field(default_factory=FiniteFlags)  # trace of the current step
    suspects: Suspects | None = None  # the check of `flags`, if it was not finite
    eval_sums: dict[CallKey, StepSums] = field(default_factory=dict)
    # Inputs of the model and of its first layer with weights.
    entering: dict[EnteringKey, EnteringSums] = field(default_factory=dict)
    called: str | None = None  # the line of the script that runs it
    # In training mode and in evaluation mode since the last step, with gradients enabled.
    passes: list[int] = field(default_factory=lambda: [0, 0])
    # Steps after passes in training mode, and steps after passes in evaluation mode only.
    trained_steps: list[int] = field(default_factory=lambda: [0, 0])
    eval_since: int | None = None
    # Classes of layers that depend on the mode and were trained in evaluation mode.
    frozen_modes: tuple[str, ...] = ()
    # Of each batch norm in training mode: the largest number of values a channel, and its batch size.
    norms: dict[str, tuple[int, int]] = field(default_factory=dict)
    # Those of them with running statistics: whether their parameters were frozen in every pass.
    frozen_norms: dict[str, bool] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)  # names of modules that were called
    severed: set[str] = field(default_factory=set)  # names of those whose output has no gradient
    dtypes: set[str] = field(default_factory=set)  # of the outputs
    has_been_trained: bool = False
    has_run_without_gradients: bool = False
    has_trained: bool = False  # it ran with gradients in training mode
    # Criteria applied without gradients, in training mode and in evaluation mode.
    evaluated: list[int] = field(default_factory=lambda: [0, 0])
    # Runs without gradients in training mode, and the classes of layers then that depend on the mode.
    loose_runs: int = 0
    loose_modes: tuple[str, ...] = ()
    # Of each recorded pass in training mode: whether all rows of the output are equal though those of the
    # input are not, the standard deviation over the rows, and that of their directions.
    outputs: list[Tensor] = field(default_factory=list)
    # A few rows of each tensor of its first batch, for `find_leak`; None if it has other arguments.
    probe: tuple[Any, ...] | None = None
    # Mean and standard deviation of its input in evaluation mode without gradients, in the first passes with
    # a criterion.
    validated: list[Tensor] = field(default_factory=list)
    seen: Tensor | None = None  # the same in the last pass without a criterion
    n_seen: int = 0  # number of passes recorded for `validated` or `seen`
    is_fed: bool = False  # whether gradients flow through its input, to another model or to the data itself
    is_only_fed: bool = True  # whether they flow to another model in every pass in training mode
    is_average: bool = False  # whether its class, or its wrapper, averages another model
    is_target: bool = False  # whether a variable of the script calls it a target, as of a value function
    n_no_grad: int = 0  # runs without gradients, separated by backward passes
    no_grad_at: int = -1  # backward passes before the last such run
    n_made: int = 0  # recorded passes in training mode
    n_reached: int = 0  # those whose output received a gradient
    # Whether it or a copy of it runs in most steps without a gradient or a criterion after it.
    makes_targets: bool = False
    # Whether it got the same input again in evaluation mode without a backward pass in between.
    is_sampled: bool = False
    copies: dict[str, tuple[int, int, bool]] = field(default_factory=dict)
    # By the number of its call between two steps: how much the loss rises if the rows of the output are
    # exchanged, and the loss; see `exchanged_rows`.
    exchanged: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    of_one_point: list[float] = field(default_factory=list)  # the loss if all of its outputs were the same
    # Where in the training the last passes in a row were that made predictions, and how many they are.
    row: tuple[tuple[int, int], int] = ((-1, -1), 0)
    _before: tuple[int, Tensor] | None = None  # backward passes, and the last input in evaluation mode

    def begin_step(self, step: int, is_recording: bool, is_followed: bool = True) -> None:
        """Reset the sums for the passes of this step."""
        self.step, self.is_recording, self.passes = step, is_recording, [0, 0]
        self.is_followed, self.has_missed = is_recording or is_followed, False
        self.sums, self.eval_sums, self.entering, self.flags = {}, {}, {}, FiniteFlags()
        self.suspects = None

    def count_step(self) -> None:
        """Count the mode of the passes of the step that ends."""
        in_training, in_evaluation = self.passes
        if in_training:
            self.trained_steps[0] += 1
            self.eval_since = None
        elif in_evaluation:
            self.trained_steps[1] += 1
            if self.eval_since is None:
                self.eval_since, self.frozen_modes = self.step, layers_in_mode(self.root(), is_training=False)

    def count_evaluation(self, is_training: bool) -> None:
        """Count a criterion applied to its output without gradients."""
        self.evaluated[not is_training] += 1
        self.row = (-1, -1), 0
        if self.seen is not None:
            self.validated.append(self.seen)
            self.seen = None

    def count_loose_run(self) -> None:
        """Note a run without gradients in training mode, and count those after training began."""
        self.loose_runs += self.has_been_trained
        self.loose_modes = self.loose_modes or layers_in_mode(self.root(), is_training=True)

    def see_validated(self, x: Tensor) -> None:
        """Record an input in evaluation mode without gradients."""
        self.n_seen += 1
        if x.numel() > 1:
            std, mean = torch.std_mean(x.detach().float(), correction=0)
            now, before = torch.stack([mean, std]), self._before
            is_again = before is not None and before[0] == self.no_grad_at and torch.equal(before[1], now)
            self.is_sampled |= is_again
            self.seen, self._before = now, (self.no_grad_at, now)

    def count_no_grad(self, n_backward: int) -> None:
        """Count a run without gradients, after this many backward passes of the training."""
        self.has_run_without_gradients = True
        self.n_no_grad += self.no_grad_at != n_backward
        self.no_grad_at = n_backward

    def expect_gradient(self, output: Any) -> None:
        """Count a pass, and whether any of its outputs receives a gradient."""
        reached: list[int] = []

        @left_alone_by_compiler
        def reach(gradient: Tensor | None) -> None:
            if gradient is not None and not reached:
                reached.append(1)
                self.n_reached += 1

        outputs = [x for _, x in tensors_in(output) if x.requires_grad]
        self.n_made += bool(outputs)
        for x in outputs:
            x.register_hook(reach)

    def runs_alone(self, n_steps: int) -> bool:
        """Tell whether it runs in most steps without a gradient or a criterion after it."""
        is_unreached = self.n_made >= _FEW and self.n_made - self.n_reached >= _OFTEN * self.n_made
        return is_unreached or self.n_no_grad - sum(self.evaluated) >= max(_OFTEN * n_steps, _FEW)

    def layer_sums(self) -> dict[CallKey, StepSums]:
        """Return the sums of the passes in training mode, else of those in evaluation mode."""
        return self.sums if self.passes[0] else self.eval_sums

    def facts(self) -> dict[str, Any]:
        """Return the facts about its training for the log."""
        return {
            "model": self.label,
            "called": self.called,
            "steps_in_training": self.trained_steps[0],
            "steps_in_evaluation": self.trained_steps[1],
            "evaluation_since": self.eval_since,
            "frozen_modes": self.frozen_modes,
            "norm_values": min(self.norms.values(), default=None),
            "norm_name": min(self.norms, key=lambda name: self.norms[name], default=""),
            "dtypes": sorted(self.dtypes),
            "has_trained": self.has_trained,
            "evaluated": self.evaluated,
            "loose_modes": self.loose_modes,
            "loose_runs": self.loose_runs,
            "outputs": self._output_figures(),
            "validated": self._validated_figures(),
            "is_fed": self.is_fed,
            "is_only_fed": self.is_fed and self.is_only_fed,
            "makes_targets": self.makes_targets,
            "is_sampled": self.is_sampled,
            "of_one_point": statistics.quantiles(one) if len(one := self.of_one_point) > 3 else [],
            "copies": [(label, *figures) for label, figures in self.copies.items()],
        }

    def _validated_figures(self) -> list[float]:
        """Return the median mean and standard deviation of the validated inputs, else those of the last input."""
        moments = self.validated or ([self.seen] if self.seen is not None else [])
        if not moments:
            return []
        mean, std = torch.stack(fetch(moments)).median(0).values.tolist()
        return [len(self.validated), mean, std]

    def _output_figures(self) -> list[float]:
        """Return the number of passes, of those with equal rows, and both spreads at the beginning and the end."""
        if not self.outputs:
            return [0, 0, *[0.0] * 4]
        self.outputs = [torch.cat([one.reshape(-1, 3) for one in fetch(self.outputs)])]
        alike, *spreads = self.outputs[0].T
        few = max(min(len(alike) // 4, 8), 1)
        ends = [float(part.median()) for one in spreads for part in (one[:few], one[-few:])]
        return [len(alike), int(alike.sum()), *ends]

    def selects(self, name: str, is_innermost: bool) -> bool:
        return is_innermost if self.wanted is None else name in self.wanted

    def forget(self, name: str) -> None:
        """Discard the sums of a layer and of those inside it."""
        inside = f"{name}." if name else ""
        for by_layer in (self.sums, self.eval_sums):
            for key in [key for key in by_layer if key[0] == name or key[0].startswith(inside)]:
                del by_layer[key]


def peel(module: nn.Module) -> nn.Module:
    """Return the model inside the wrappers of data parallelism, compilation and training frameworks."""
    while (inside := _inside(module)) is not None:
        module = inside[1]
    return module


def is_average(module: nn.Module) -> bool:
    """Tell from the class of a module whether it averages another: `AveragedModel`, `ModelEmaV3`."""
    name = type(module).__name__
    return name == "AveragedModel" or "EMA" in name or "Ema" in name


def is_called_target(module: nn.Module) -> bool:
    """Tell from the variables of the function that runs a module: `target_net`, `self.critic_target`."""
    frame = frame_of_caller()
    variables = list(frame.f_locals.items()) if frame is not None else []
    return any(value is module and _TARGET.search(name) for _, name, value in walk_named(variables, 2))


def _variable_of(module: nn.Module) -> str | None:
    """Return the variable that alone holds a module of torch where it runs, if others hold more of its class."""
    frame = frame_of_caller() if type(module).__module__.startswith("torch.") else None
    for scope in (frame.f_locals, frame.f_globals) if frame is not None else ():
        held = [(name, value) for name, value in scope.items() if type(value) is type(module)]
        names = [name for name, value in held if value is module]
        if len(names) == 1 < len(held):
            return names[0]
    return None


def kind_of(module: nn.Module) -> str:
    """Return the class as written: `fully_shard` replaces it by a class that derives from it."""
    kinds = [kind.__name__ for kind in type(module).__mro__]
    return kinds[2] if kinds[1] == "FSDPModule" else kinds[0]


def is_wrapper(module: nn.Module) -> bool:
    return _inside(module) is not None


def _inside(module: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the attribute and the module inside a wrapper; None for any other module."""
    kind: type = type(module)
    for attribute in _attributes_of(kind):
        inner = getattr(module, attribute, None)
        if isinstance(inner, nn.Module):
            return attribute, inner
    return None


@functools.lru_cache(maxsize=1024)  # asked several times in every pass
def _attributes_of(kind: type) -> tuple[str, ...]:
    """Return the attributes that hold the wrapped module in a class of modules; none for most."""
    return tuple(_WRAPPERS[base.__name__] for base in kind.__mro__ if base.__name__ in _WRAPPERS)


def written_layers(root: nn.Module) -> list[tuple[Layer, nn.Module]]:
    """Return `list_layers` with the names that the user wrote: `layer1.conv` for `layer1._orig_mod.conv`."""
    layers = list_layers(root, with_parts=True)
    if not any(is_wrapper(module) for _, module in layers):
        return layers
    written: dict[str, str] = {}
    wrapped: dict[str, str | None] = {}  # the attribute of the wrapped module
    for name, module in root.named_modules(remove_duplicate=False):  # a parent comes before its children
        parent, _, last = name.rpartition(".")
        is_wrapped = bool(name) and wrapped[parent] == last
        written[name] = written[parent] if is_wrapped else ".".join(filter(None, (written.get(parent), last)))
        inside = _inside(module)
        wrapped[name] = inside[0] if inside else None
    return [
        (
            replace(
                layer,
                name=written[layer.name],
                depth=written[layer.name].count(".") + 1 if written[layer.name] else 0,
                aliases=tuple(written[alias] for alias in layer.aliases),
            ),
            module,
        )
        for layer, module in layers
    ]


class ModelRegistry:
    """Every model that has run. It keeps none alive.

    Args:
        patterns: `--layer`.
        only: the models to watch; None for every one that runs.
    """

    def __init__(self, patterns: tuple[str, ...], only: Sequence[nn.Module] | None = None) -> None:
        self.models: list[WatchedModel] = []
        self.is_closed = False
        self._patterns = patterns
        self._listed: set[str] = set()  # what holds modules without registering them
        self.hidden: list[WatchedModel] = []  # run inside models without being registered in them
        self._named: list[WatchedModel] = []  # without rows; only their parameters are named
        self._strangers: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # run inside models, not part of them
        self._places: dict[int, tuple[weakref.ref[nn.Module], WatchedModel, str]] = {}
        # Of each module, the line that makes it, and the models that had been trained before
        self._made: dict[int, tuple[weakref.ref[nn.Module], str | None, list[WatchedModel]]] = {}
        for model in map(peel, only or ()):
            if self.find(model) is None:
                self.register(model)
        self.is_closed = only is not None

    def is_evaluating(self) -> bool:
        """Tell whether any model is in evaluation mode, as during validation."""
        return any(not root.training for model in self.models if (root := model.root()) is not None)

    def find(self, module: nn.Module) -> tuple[WatchedModel, str] | None:
        """Return a module's model and its name there; None if it is part of none."""
        place = self._places.get(id(module))
        return (place[1], place[2]) if place is not None and place[0]() is module else None

    def name_in(self, model: WatchedModel, module: nn.Module) -> str | None:
        """Return the name of a module in a model; None if it is not part of it."""
        place = self.find(module)
        return place[1] if place is not None and place[0] is model else None

    def name_inside(self, model: WatchedModel, module: nn.Module) -> str | None:
        """Return `name_in` of a module that ran inside a model, which may have been added after its first run."""
        root = model.root()
        if self.find(module) is None and root is not None and module not in self._strangers:
            self.register(root)
            if self.find(module) is None:
                self._strangers.update(module.modules())
                if module.training and any(p.requires_grad for p in module.parameters()):
                    self.take_in(module)
                    self._listed |= {f"{model.label}.{one}" for one in unregistered_in(root, module)}
        return self.name_in(model, module)

    def take_in(self, module: nn.Module, kind: str | None = None) -> None:
        """Add a module that is trained with a model without being registered in it, as in a Python list."""
        label = self._label(module, kind)
        hidden = WatchedModel(label, weakref.ref(module), has_run_without_gradients=True, has_trained=True)
        self.hidden.append(hidden)

    def set_aside(self, model: WatchedModel) -> None:
        """Treat a model as a criterion: without rows; its parameters are named if an optimizer holds them."""
        model.begin_step(0, is_recording=False)
        self.models.remove(model)
        self._named.append(model)

    def name(self, root: nn.Module) -> None:
        """Name the parameters of a module that did not run."""
        self._named.append(WatchedModel(self._label(root), weakref.ref(root)))

    def register(self, root: nn.Module) -> WatchedModel | None:
        """Add a module that runs outside of any other as a model, or update its layers; None without parameters."""
        if next(root.parameters(), None) is None:
            return None
        place = self.find(root)
        if self.is_closed and not place:
            return None
        model = place[0] if place and not place[1] else self._new(root)
        for layer, module in written_layers(root):
            part = self.find(module)
            if part is not None and part[0] is not model and not part[1] and part[0] in self.models:
                self.models.remove(part[0])  # it ran separately before, and was taken for a model
            self._places[id(module)] = (weakref.ref(module), model, layer.name)
        return model

    def note_made(self, module: nn.Module) -> None:
        trained = [model for model in self.models if model.is_stepped and any(model.trained_steps)]
        self._made[id(module)] = weakref.ref(module), place_of_caller(module), trained

    def is_made_again(self, parameters: Sequence[Tensor]) -> bool:
        """Tell whether a model that was made again has the first of some parameters."""
        roots = (root for model in self.models if model.n_again and (root := model.root()) is not None)
        return any(p is parameters[0] for root in roots for p in root.parameters()) if parameters else False

    def at_end(self) -> Iterator[tuple[str, str]]:
        """Yield events: models made again, frozen norms in training mode, modules in plain lists."""
        yield from ((LISTED, one) for one in sorted(self._listed))
        for one in self.models:
            names = [name for name, is_frozen in one.frozen_norms.items() if is_frozen]
            if names and one.is_stepped:
                norms = "a frozen batch norm" if len(names) == 1 else f"{len(names)} frozen batch norms"
                words = f"in training mode the running statistics of {norms} of {one.label} change"
                yield MOVING_NORMS, f"{words}: {some(names)}; call .eval() on them to keep them frozen too"
            if one.n_again:
                words = f"{one.label} is made again {counted(one.n_again, 'time')} ({one.made})"
                yield MADE_AGAIN, f"{words}: each starts from new weights"

    def _new(self, root: nn.Module) -> WatchedModel:
        made, place, trained = self._made.get(id(root), (None, None, []))
        place = place if made is not None and made() is root else None
        shapes = tuple(p.shape for p in root.parameters() if not is_lazy(p))
        label = self._label(root)
        kind = label.partition("#")[0]
        for one in trained if place else ():
            if (one.made, one.shapes, one.label.partition("#")[0]) == (place, shapes, kind):
                one.root, one.has_been_trained, one.n_again = weakref.ref(root), False, one.n_again + 1
                return one
        model = WatchedModel(label, weakref.ref(root), made=place, shapes=shapes)
        model.wanted = self._selected_names(root) if self._patterns else None
        self.models.append(model)
        return model

    def _label(self, root: nn.Module, kind: str | None = None) -> str:
        kind = kind or _variable_of(root) or kind_of(root)
        every = *self.models, *self.hidden, *self._named
        n_alike = sum(one.label.partition("#")[0] == kind for one in every if one.root() is not root)
        return f"{kind}#{n_alike + 1}" if n_alike else kind

    def _selected_names(self, root: nn.Module) -> frozenset[str]:
        layers = [layer for layer, _ in written_layers(root)]
        names: set[str] = set()
        for pattern in map(parse_pattern, self._patterns):
            try:
                names |= {layer.name for layer in match_layers(pattern, layers)}
            except UsageError:
                continue  # another model may have it; see `check_patterns`
        return frozenset(names)

    def check_patterns(self) -> list[str]:
        """Refuse `--layer` once there is a model to train and no pattern matches in any; return notes on ambiguous
        words."""
        roots = [root for model in self.models if (root := model.root()) is not None]
        if any(model.wanted for model in self.models):
            every = [layer for root in roots for layer, _ in written_layers(root)]
            return list(filter(None, (explain(parse_pattern(one), every) for one in self._patterns)))
        for root in roots if self._patterns else ():
            match_layers(parse_pattern(self._patterns[0]), [layer for layer, _ in written_layers(root)])
        return []

    def held_by_none(self, parameters: Iterable[Tensor]) -> list[WatchedModel]:
        """Return the models that ran with gradients and of which no optimizer holds a parameter."""
        ids = set(map(id, parameters))
        return [
            model
            for model in self.models
            if model.has_been_trained and (root := model.root()) is not None
            if not any(id(p) in ids for p in root.parameters())
        ]

    def parameter_names(self) -> dict[int, tuple[str, str]]:
        """Return `(model, qualified name)` of every parameter by its id."""
        return {
            id(parameter): (model.label, f"{layer.name}.{name}" if layer.name else name)
            for model in reversed([*self.models, *self._named])
            if (root := model.root()) is not None
            for layer, module in reversed(written_layers(root))
            for name, parameter in module.named_parameters(recurse=False)
        }
