"""Steps that no optimizer of `torch.optim` took, told from what became of the parameters after a backward pass.

fastai's optimizers, a compiled `step` and `p.data -= lr * p.grad` tell nobody. What a backward pass left is
compared with what is there when the next pass begins: where a parameter is another one, a step was taken. Where no
module runs, the parameters are the leaves of the graph of the loss.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.torch_private import version_of
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel
from modelscope_cli.watching.owners import find_owners
from modelscope_cli.watching.parameters import StepWatch, is_sharded, norm_of, sample_of
from modelscope_cli.watching.place import frame_of_caller, walk_named

_MOST_NODES = 4096  # of a graph whose leaves are looked for
_DEPTH = 3  # of lists and objects in which their names are
_ANOTHER = 0.5  # of its size; a leaf that changed by more is other data, not what a step made of the old one


class Tensors(nn.Module):
    """Stands in for the module of a training that has none: its parameters are the leaves of a loss, by name."""

    def __init__(self, leaves: Sequence[Tensor], frame: FrameType | None) -> None:
        super().__init__()
        names: dict[int, str] = {}
        # Any object may raise when its parts are read.
        with contextlib.suppress(Exception):
            names = _names_in(frame, leaves)
        self.replace({names.get(id(leaf), f"tensor{i}"): leaf for i, leaf in enumerate(leaves)})

    def replace(self, leaves: dict[str, Tensor]) -> None:
        """Hold these; torch's own way takes an `nn.Parameter` only."""
        self._parameters = leaves  # type: ignore[assignment]

    def follow(self, leaves: Sequence[Tensor]) -> dict[int, Tensor]:
        """Hold the leaves of the next loss; return those that a step may have made anew, by the id of the old.

        `w = (w - lr * w.grad).detach().requires_grad_()` gives a new leaf in each step, and so does new data.
        """
        held = dict(self.named_parameters())
        if len(held) != len(leaves) or any(
            a.shape != b.shape for a, b in zip(held.values(), leaves, strict=True)
        ):
            return {}
        self.replace(dict(zip(held, leaves, strict=True)))
        return {
            id(old): new
            for old, new in zip(held.values(), leaves, strict=True)
            if old is not new
            and 0 < norm_of(sample_of(new) - sample_of(old)) < _ANOTHER * norm_of(sample_of(old))
        }


def graph_leaves(loss: Any) -> list[Tensor]:
    """Return the tensors that gradients of a loss arrive at, in the order of the graph; of a huge graph some."""
    waiting = [loss.grad_fn] if isinstance(loss, Tensor) and loss.grad_fn is not None else []
    seen: set[Any] = set()
    found: dict[int, Tensor] = {}
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            found[id(leaf)] = leaf
        waiting += [other for other, _ in node.next_functions if other is not None]
    return list(found.values())


def _names_in(frame: FrameType | None, leaves: Sequence[Tensor]) -> dict[int, str]:
    """Return what a function calls tensors, by their ids: `w`, or `params[0]` where not each has a plain name."""
    wanted, named = set(map(id, leaves)), [dict[int, str]() for _ in range(_DEPTH + 1)]
    variables = [*frame.f_locals.items(), *frame.f_globals.items()] if frame is not None else []
    roots = [
        (name, value) for name, value in variables if name[:2] != "__" and not hasattr(value, "__code__")
    ]
    for depth, name, value in walk_named(roots, _DEPTH):
        if id(value) in wanted:
            named[depth].setdefault(id(value), name)
    whole = next((found for found in named if len(found) == len(wanted)), None)
    return whole or {key: name for found in reversed(named) for key, name in found.items()}


class inferred:  # noqa: N801  the label of an optimizer is the name of its class
    """Stands in for the optimizer of one model that is not one of torch's.

    Attributes:
        watch: what the parameters were after the last backward pass; None at steps that are not recorded.
        grad_scale: of the gradients that the last backward pass left; None for 1.
    """

    def __init__(self, root: nn.Module) -> None:
        self.root = weakref.ref(root)
        self.watch: StepWatch | None = None
        self.grad_scale: Tensor | None = None
        self.param_groups: list[dict[str, Any]] = []
        self._model: nn.Module | None = None  # held until it is known what became of its parameters
        self._weights: list[tuple[Tensor, int, Tensor]] = []

    @property
    def is_open(self) -> bool:
        """Whether a backward pass waits for its step."""
        return self._model is not None

    def open(self, scale: float, is_recorded: bool) -> None:
        """Remember what is there now, right after a backward pass.

        Values too: a write through `.data` leaves a parameter's version as it was.
        """
        model = self._model = self.root()
        parameters = list(filter(_is_plain, model.parameters())) if model is not None else []
        self.param_groups = [{"params": parameters}]
        self.grad_scale = torch.tensor(scale) if scale != 1 else None
        with torch.no_grad():
            self._weights = [(p, version_of(p), sample_of(p).clone()) for p in parameters]
        self.watch = StepWatch(self) if is_recorded else None

    def has_stepped(self, replaced: dict[int, Tensor]) -> bool:
        """Tell whether a parameter is not what it was, or has made way for another; see `Tensors.follow`."""
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
        """Let go of the model and its parameters."""
        self._model, self._weights, self.param_groups, self.watch = None, [], [], None


class InferredSteps:
    """The models whose weights no optimizer of `torch.optim` has stepped so far, and what waits for a step."""

    def __init__(self) -> None:
        self._by_root: dict[int, inferred] = {}
        self.tensors: Tensors | None = None
        self.replaced: dict[int, Tensor] = {}  # leaves since the last backward pass
        self._loose: list[Tensors] = []

    def take_loose(self, loss: Any, registry: ModelRegistry, held: Sequence[Tensor]) -> None:
        """Let the registry know what a loss is to train, and neither a model nor an optimizer holds.

        Parameters and lone numbers: other leaves may be inputs, and what a module in evaluation holds may be meant
        to stay.
        """
        roots = [root for one in (*registry.models, *registry.hidden) if (root := one.root()) is not None]
        known = {id(p) for root in roots for p in root.parameters()} | set(map(id, held))
        leaves = [leaf for leaf in graph_leaves(loss) if id(leaf) not in known]
        leaves = [
            leaf for leaf in leaves if type(leaf) is nn.Parameter or not (leaf.ndim or is_sharded(leaf))
        ]
        owners = find_owners(leaves)
        kept = {
            id(p) for one in owners for part in one.modules() if not part.training for p in part.parameters()
        }
        if leaves := [leaf for leaf in leaves if id(leaf) not in kept]:
            loose = Tensors(leaves, frame_of_caller())
            own = {id(p): name for owner in owners for name, p in owner.named_parameters()}
            loose.replace({own.get(id(p), name): p for name, p in loose.named_parameters()})
            self._loose.append(loose)
            registry.take_in(loose, "Parameters")

    def remember(
        self, models: list[WatchedModel], scale: float, is_recorded: Callable[[inferred], bool]
    ) -> None:
        """Look at what a backward pass has left, of the models that had a part in it."""
        for model in models:
            root = model.root()
            if model.has_run and not model.is_stepped and root is not None:
                known = self._by_root.get(id(root))
                if known is None or known.root() is not root:
                    known = self._by_root[id(root)] = inferred(root)
                known.open(scale, is_recorded(known))
            model.has_run = False

    @property
    def is_open(self) -> bool:
        """Whether any waits for its step."""
        return any(one.is_open for one in self._by_root.values())

    def stepped(self) -> Iterator[inferred]:
        """Give those that have taken a step since; they wait no longer when the next one is asked for."""
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
        """Wait for nothing: an optimizer steps that says so."""
        for one in self._by_root.values():
            one.close()


def _is_plain(parameter: Tensor) -> bool:
    """Tell what is trained and holds its own values from what is sharded, quantised or sparse."""
    is_dense = (
        type(parameter) in (nn.Parameter, Tensor)
        and parameter.layout is torch.strided
        and not parameter.is_meta
    )
    return is_dense and parameter.requires_grad


def _is_same(now: Tensor, before: Tensor) -> bool:
    """Compare values; a model that was moved or cast meanwhile took no step by that."""
    if (now.shape, now.dtype, now.device) != (before.shape, before.dtype, before.device):
        return True
    return torch.equal(now, before)
