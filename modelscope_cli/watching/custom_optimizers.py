"""Infer steps without an optimizer of `torch.optim` from changes of the parameters.

fastai's optimizers, a compiled `step` and `p.data -= lr * p.grad` call no hook. The parameters after a backward
pass are compared with those when the next pass begins. If no module runs, the parameters are the leaves of the
loss.
"""

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.hooks.torch_private import graph_leaves, has_compiled, version_of
from modelscope_cli.source_location import frame_of_caller, place_of_caller, walk_named
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel, peel
from modelscope_cli.watching.parameters import (
    Stepper,
    StepWatch,
    is_sharded,
    norm_of,
    parameters_of,
    sample_of,
)

_T = TypeVar("_T")


def find_owners(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """Return the outermost modules of this process that hold any of the parameters.

    This searches all objects of the garbage collector, which takes about as long as a few steps.
    """
    ids = {id(parameter) for parameter in parameters}
    owners = [module for module in _all_of(nn.Module) if _holds(module, ids)] if ids else []
    inside = {id(part) for owner in owners for part in owner.modules() if part is not owner}
    return [peel(owner) for owner in owners if id(owner) not in inside]


def name_owners(optimizer: Stepper, registry: ModelRegistry) -> None:
    """Name the modules that hold parameters of an optimizer and did not run."""
    known = registry.parameter_names()
    for owner in find_owners([p for p in parameters_of(optimizer) if id(p) not in known]):
        registry.name(owner)


def register_hidden(registry: ModelRegistry, parameters_of_losses: Iterable[Tensor], n_backward: int) -> bool:
    """Register the models whose passes cannot be observed, as inside a compiled function; return whether any is.

    Their parameters have gradients, and no step of their optimizer was observed.

    Args:
        parameters_of_losses: parameters without an observed step.
    """
    models = registry.models
    if not has_compiled() or any(model.has_run for model in models):
        return False
    unclaimed = {id(p): p for p in parameters_of_losses if p.grad is not None}
    for model in models:
        parameters = root.parameters() if (root := model.root()) is not None else ()
        model.has_run = bool([p for p in parameters if unclaimed.pop(id(p), None) is not None])
    # At 1, 2, 4 ... backward passes, as the search is slow.
    if unclaimed and n_backward & (n_backward - 1) == 0:
        for owner in find_owners(unclaimed.values()):
            if (model_of_owner := registry.register(owner)) is not None:
                model_of_owner.has_run = True
    return any(model.has_run for model in models)


def find_optimizers(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Return the optimizers of this process that hold any of the parameters; as slow as `find_owners`."""
    ids = {id(parameter) for parameter in parameters}
    if not ids:
        return []  # before a script begins
    return [
        one
        for one in _all_of(Optimizer)
        if any(id(p) in ids for group in getattr(one, "param_groups", ()) for p in group["params"])
    ]


def _all_of(kind: type[_T]) -> list[_T]:
    """Return all objects of a kind that the garbage collector tracks; checks each type once."""
    everything = gc.get_objects()
    # Not isinstance, which would load lazy modules by reading their `__class__`.
    kinds = {one for one in set(map(type, everything)) if issubclass(one, kind)}
    return [one for one in everything if type(one) in kinds]


def _holds(module: nn.Module, ids: set[int]) -> bool:
    if type(module).__name__ == "GraphModule":
        return False  # a compiled graph
    try:
        return any(id(parameter) in ids for parameter in module.parameters())
    except AttributeError:  # its constructor has not finished
        return False


_DEPTH = 3  # of lists and objects searched for their names
_ANOTHER = 0.5  # of its norm; a leaf that changed by more is other data, not the result of a step


class Tensors(nn.Module):
    """A module for a training without one: its parameters are the leaves of a loss, by name."""

    def __init__(self, leaves: Sequence[Tensor], frame: FrameType | None) -> None:
        super().__init__()
        names: dict[int, str] = {}
        # Any object may raise when its parts are read.
        with contextlib.suppress(Exception):
            names = _names_in(frame, leaves)
        self.replace({names.get(id(leaf), f"tensor{i}"): leaf for i, leaf in enumerate(leaves)})

    def replace(self, leaves: dict[str, Tensor]) -> None:
        """Set the parameters; `register_parameter` takes only an `nn.Parameter`."""
        self._parameters = leaves  # type: ignore[assignment]

    def follow(self, leaves: Sequence[Tensor]) -> dict[int, Tensor]:
        """Set the leaves of the next loss; return those that a step may have replaced, by the id of the old leaf.

        `w = (w - lr * w.grad).detach().requires_grad_()` creates a new leaf in each step, and so does new data.
        """
        old_parameters = dict(self.named_parameters())
        if [old.shape for old in old_parameters.values()] != [leaf.shape for leaf in leaves]:
            return {}
        self.replace(dict(zip(old_parameters, leaves, strict=True)))
        return {
            id(old): new
            for old, new in zip(old_parameters.values(), leaves, strict=True)
            if old is not new
            and 0 < norm_of(sample_of(new) - sample_of(old)) < _ANOTHER * norm_of(sample_of(old))
        }


def unheld_models(loss: Any, registry: ModelRegistry, held: Sequence[Tensor]) -> list[str]:
    """Return the models with parameters that a loss reaches, if none of them is held by an optimizer."""
    ids = {id(leaf) for leaf in graph_leaves(loss)}
    if not ids.isdisjoint(map(id, held)):
        return []
    roots = [(model.label, root) for model in registry.models if (root := model.root()) is not None]
    return [label for label, root in roots if any(id(p) in ids for p in root.parameters())]


def _names_in(frame: FrameType | None, leaves: Sequence[Tensor]) -> dict[int, str]:
    """Return the names of tensors in a function, by their ids: `w`, or `params[0]` if not each is a variable."""
    ids, named = set(map(id, leaves)), [dict[int, str]() for _ in range(_DEPTH + 1)]
    variables = [*frame.f_locals.items(), *frame.f_globals.items()] if frame is not None else []
    roots = [pair for pair in variables if pair[0][:2] != "__" and not hasattr(pair[1], "__code__")]
    for depth, name, value in walk_named(roots, _DEPTH):
        if id(value) in ids:
            named[depth].setdefault(id(value), name)
    complete = next((names for names in named if len(names) == len(ids)), None)
    return complete or {key: name for names in reversed(named) for key, name in names.items()}


class inferred:  # noqa: N801  the label of an optimizer is the name of its class
    """A substitute for the optimizer of one model that is not one of torch's."""

    def __init__(self, root: nn.Module) -> None:
        self.root = weakref.ref(root)
        # The parameters after the last backward pass; None at steps that are not recorded
        self.watch: StepWatch | None = None
        self.grad_scale: Tensor | None = None  # of the gradients after the last backward pass; None for 1
        self.param_groups: list[dict[str, Any]] = []
        self._model: nn.Module | None = None  # held until the next comparison
        self._weights: list[tuple[Tensor, int, Tensor]] = []

    @property
    def is_open(self) -> bool:
        """Whether a backward pass waits for its step."""
        return self._model is not None

    def open(self, scale: float, is_recorded: bool) -> None:
        """Store versions and samples of the parameters right after a backward pass.

        A write through `.data` does not change the version of a parameter.
        """
        model = self._model = self.root()
        parameters = list(filter(_is_plain, model.parameters())) if model is not None else []
        self.param_groups = [{"params": parameters}]
        self.grad_scale = torch.tensor(scale) if scale != 1 else None
        with torch.no_grad():
            self._weights = [(p, version_of(p), sample_of(p).clone()) for p in parameters]
        self.watch = StepWatch(self) if is_recorded else None

    def has_stepped(self, replaced: dict[int, Tensor]) -> bool:
        """Tell whether a parameter has changed or was replaced; see `Tensors.follow`."""
        with torch.no_grad():
            if replaced and self.watch is not None:
                self.watch.replace(replaced)
            return any(
                id(parameter) in replaced
                or version_of(parameter) != version
                or not _is_same(sample_of(parameter), sample)
                for parameter, version, sample in self._weights
            )

    def close(self) -> None:
        """Release the model and its parameters."""
        self._model, self._weights, self.param_groups, self.watch = None, [], [], None


class InferredSteps:
    """The models whose weights no optimizer of `torch.optim` has stepped so far."""

    def __init__(self) -> None:
        self._by_root: dict[int, inferred] = {}
        self.tensors: Tensors | None = None
        # Whether a loss depends on parameters of a module: no others are looked for
        self.is_of_modules = False
        self.replaced: dict[int, Tensor] = {}  # leaves since the last backward pass
        self._loose: list[Tensors] = []

    def take_tensors(
        self, leaves: Sequence[Tensor], registry: ModelRegistry, waiting: Sequence[Tensor]
    ) -> WatchedModel | None:
        """Return the leaves of a loss as a model.

        Not if an optimizer that waits for its first step holds any, or a model that is trained.
        """
        leaves = [leaf for leaf in leaves if leaf.is_floating_point()]
        roots = [root for model in registry.models if model.has_been_trained and (root := model.root())]
        of_modules = {id(p) for root in roots if root is not self.tensors for p in root.parameters()}
        ids = set(map(id, leaves))
        self.is_of_modules = not ids.isdisjoint(of_modules)
        if not leaves or self.is_of_modules or not ids.isdisjoint(map(id, waiting)):
            return None
        if self.tensors is None:
            self.tensors = Tensors(leaves, frame_of_caller())
            model = registry.register(self.tensors)
            assert model is not None
            model.called, model.ran = place_of_caller(), {""}
            model.has_been_trained = model.has_trained = True
        else:
            self.replaced = self.tensors.follow(leaves)
            model = next(model for model in registry.models if model.root() is self.tensors)
        model.has_run, model.passes[0] = True, 1
        return model

    def take_loose(self, loss: Any, registry: ModelRegistry, of_optimizers: Sequence[Tensor]) -> None:
        """Register the leaves of a loss that neither a model nor an optimizer holds.

        Only parameters and scalars: other leaves may be inputs. Those of modules in evaluation mode are
        left out, as they may be frozen on purpose.
        """
        roots = [root for one in (*registry.models, *registry.hidden) if (root := one.root()) is not None]
        ids = {id(p) for root in roots for p in root.parameters()} | set(map(id, of_optimizers))
        leaves = [leaf for leaf in graph_leaves(loss) if id(leaf) not in ids]
        leaves = [x for x in leaves if type(x) is nn.Parameter or not (x.ndim or is_sharded(x))]
        owners = find_owners(leaves)
        in_evaluation = {
            id(p) for one in owners for part in one.modules() if not part.training for p in part.parameters()
        }
        if leaves := [leaf for leaf in leaves if id(leaf) not in in_evaluation]:
            loose = Tensors(leaves, frame_of_caller())
            names = {id(p): name for owner in owners for name, p in owner.named_parameters()}
            loose.replace({names.get(id(p), name): p for name, p in loose.named_parameters()})
            self._loose.append(loose)
            registry.take_in(loose, "Parameters")

    def remember(
        self, models: list[WatchedModel], scale: float, is_recorded: Callable[[inferred], bool]
    ) -> None:
        """Store the parameters of the models that ran before a backward pass."""
        for model in models:
            root = model.root()
            if model.has_run and not model.is_stepped and root is not None:
                optimizer = self._by_root.get(id(root))
                if optimizer is None or optimizer.root() is not root:
                    optimizer = self._by_root[id(root)] = inferred(root)
                optimizer.open(scale, is_recorded(optimizer))
            model.has_run = False

    @property
    def is_open(self) -> bool:
        """Whether any waits for its step."""
        return any(one.is_open for one in self._by_root.values())

    def stepped(self) -> Iterator[inferred]:
        """Yield those that have taken a step since, and close each."""
        for one in self._by_root.values():
            if one.is_open and one.has_stepped(self.replaced):
                one.param_groups = [
                    {"params": [self.replaced.get(id(p), p) for p in group["params"]]}
                    for group in one.param_groups
                ]
                yield one
                one.close()
        self.replaced = {}

    def forget(self) -> None:
        """Close all, as an optimizer with hooks steps."""
        for one in self._by_root.values():
            one.close()


def _is_plain(parameter: Tensor) -> bool:
    """Tell whether a parameter is trained and neither sharded, quantised nor sparse."""
    is_dense = type(parameter) in (nn.Parameter, Tensor) and parameter.layout is torch.strided
    return is_dense and parameter.requires_grad and not parameter.is_meta


def _is_same(now: Tensor, before: Tensor) -> bool:
    """Compare values; moving or casting a model is not a step."""
    is_moved = (now.shape, now.dtype, now.device) != (before.shape, before.dtype, before.device)
    return is_moved or torch.equal(now, before)
