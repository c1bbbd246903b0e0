"""Facts after a few steps: which optimizer holds a parameter, when its gradient is cleared, whether it is used."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau, SequentialLR

from modelscope_cli.hooks.fetch import Deferred, joined
from modelscope_cli.hooks.torch_private import left_alone_by_compiler
from modelscope_cli.records.watch import STALE_NORMS, UNLOADED, ParameterFacts
from modelscope_cli.source_location import place_of_caller
from modelscope_cli.watching.custom_optimizers import Tensors
from modelscope_cli.watching.cycle import Cycle
from modelscope_cli.watching.error_isolation import Guard, after, replaced
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel
from modelscope_cli.watching.parameters import (
    Stepper,
    held_here,
    is_sharded,
    norm_of,
    parameters_of,
    sample_of,
)
from modelscope_cli.watching.uses import Uses

_LENGTHS = "total_steps", "T_max", "total_iters"  # attributes of torch's schedules
_TEACHER, _FEW = 4, 4  # tensors; steps
_SAMPLE = 64  # elements of a parameter that are compared to detect changes
_LONG = 500  # runs of a target between the steps
_MOST_ALIKE = 1 << 22  # elements of a parameter that is searched for equal rows


def _length_of(schedule: Any) -> int:
    """Return the length of a schedule in steps, 0 if unknown; transformers' keep it in a partial."""
    parts = getattr(schedule, "_schedulers", None)
    if parts:
        starts = getattr(schedule, "_milestones", [0])
        return int(starts[-1]) + last if (last := _length_of(parts[-1])) else 0
    n_training = [
        getattr(one, "keywords", {}).get("num_training_steps") for one in getattr(schedule, "lr_lambdas", ())
    ]
    named = (getattr(schedule, name, None) for name in _LENGTHS)
    return next((n for n in (*named, *n_training) if isinstance(n, int)), 0)


def _are_same(before: list[Tensor], now: list[Tensor]) -> bool:
    return len(before) == len(now) and not any(joined(map(_differ, before, now))())


def _differ(before: Tensor, now: Tensor) -> Deferred[bool]:
    if before.shape != now.shape:
        return Deferred((), lambda: True)
    return Deferred(((before != now).any(),), bool)


@dataclass(slots=True)
class _Known:
    """The first state of a parameter, and whether it has had a gradient since."""

    sample: Tensor
    # Root mean square, and whether all rows were equal; None if unknown
    start: Deferred[list[Any]]
    first: list[Any] | None = None  # the same, once it is read
    has_gradient: bool = False


class Bookkeeper:
    """Collects facts about the optimizers and parameters of a process."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._cycles: dict[int, Cycle] = {}
        self._tell: Callable[[str, str], object] = lambda kind, message: None
        self._filled: dict[int, weakref.ref[Tensor]] = {}  # by load_state_dict
        self._known: dict[int, tuple[weakref.ref[Tensor], _Known]] = {}
        self.schedules: list[tuple[weakref.ref[LRScheduler], dict[str, Any]]] = []  # with what is known of it
        self.uses = Uses()
        self._last: dict[str, Cycle] = {}  # of the optimizer that stepped last, by the line that created it

    def installed(self, guard: Guard) -> AbstractContextManager[None]:
        """Record the lines that create optimizers and schedules while open."""
        self._tell = guard.tell_once

        load, made = nn.Module.load_state_dict, functools.partial(guard, self._scheduled)

        @functools.wraps(load)
        def loaded(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = load(module, *args, **kwargs)
            guard(self._loaded, module, result)
            return result

        return replaced(
            after(Optimizer, functools.partial(guard, self._made)),
            after(nn.Module, functools.partial(guard, self._registry.note_made)),
            # The last two do not call LRScheduler.__init__
            *[after(one, made) for one in (LRScheduler, SequentialLR, ReduceLROnPlateau)],
            (nn.Module, "load_state_dict", left_alone_by_compiler(loaded, with_callees=False)),
        )

    def _scheduled(self, schedule: LRScheduler) -> None:
        self.schedules.append((weakref.ref(schedule), {"made": place_of_caller()}))

    def _loaded(self, module: nn.Module, result: Any) -> None:
        """Note that a model which has taken steps has its first weights again, and one into which nothing fits."""
        is_partial = bool(getattr(result, "unexpected_keys", None) and result.missing_keys)
        own = [name for name, _ in module.named_parameters()] if is_partial else []
        if own and {*own} <= {*result.missing_keys}:
            theirs, ours = result.unexpected_keys[0], own[0]
            words = f"load_state_dict loaded nothing into {type(module).__name__}: no name matches"
            words += f", as '{theirs}' is not '{ours}'"
            self._tell(UNLOADED, f"{words} ({place_of_caller()})")
        missing = getattr(result, "missing_keys", ())
        self._filled.update({id(p): weakref.ref(p) for n, p in module.named_parameters() if n not in missing})
        known = [(p, entry[1]) for p in module.parameters() if (entry := self._known.get(id(p))) is not None]
        samples = [one.sample for _, one in known]
        if not known or not _are_same(samples, [sample_of(p, _SAMPLE) for p, _ in known]):
            return
        ids = {id(p) for p, _ in known}
        for cycle in self._cycles.values():
            cycle.is_loaded |= cycle.n_steps > 0 and any(id(p) in ids for p in cycle.held())

    def note_schedules(self, optimizer: Stepper, label: str, steps: int) -> None:
        """Note the facts about the schedules of an optimizer; they may be gone when the run ends."""
        for reference, known in self.schedules:
            schedule = reference()
            peaks = [one.get("max_lr", one.get("initial_lr")) or 0.0 for one in optimizer.param_groups]
            if schedule is not None and getattr(schedule, "optimizer", None) is optimizer:
                known |= {
                    "schedule": type(schedule).__name__,
                    "optimizer": label,
                    "total": _length_of(schedule),
                    "base": min(peaks, default=None),
                    "used": schedule.last_epoch,
                    "steps": steps,
                }

    def _made(self, optimizer: Optimizer) -> None:
        cycle, place = self.cycle(optimizer), place_of_caller()
        cycle.made, cycle.follows = place, self._last.get(place or "")

    def take_over(self, optimizer: Optimizer) -> None:
        """Before the first step of an optimizer, continue the history of the one that it replaces."""
        last = (cycle := self.cycle(optimizer)).follows
        if last is None or last is cycle or cycle.n_steps:
            return
        if last.goes_on_as(cycle, self._registry.is_made_again(cycle.held())):
            self._cycles = {key: one for key, one in self._cycles.items() if one is not last}
            self._cycles[id(optimizer)] = last

    def after_step(self, optimizer: Stepper, n_before: int) -> None:
        cycle = self.cycle(optimizer)
        if not isinstance(optimizer, Optimizer):
            cycle.before_step()  # an inferred step is seen after it
        cycle.after_step(n_before)
        if cycle.made is not None:
            self._last[cycle.made] = cycle

    def groups_of(self, optimizer: Stepper) -> list[dict[str, Any]]:
        """Return the parameter groups; of an inferred optimizer, those of one that is not seen to step, if any."""
        if isinstance(optimizer, Optimizer):
            return optimizer.param_groups
        ids = {id(p) for p in parameters_of(optimizer)}
        return [
            group
            for cycle in self._cycles.values()
            if not cycle.n_steps and (one := cycle.optimizer()) is not None
            for group in one.param_groups
            if any(id(p) in ids for p in group["params"])
        ]

    def cycle(self, optimizer: Stepper) -> Cycle:
        history = self._cycles.get(id(optimizer))
        if history is None or history.optimizer() is not optimizer:
            self._cycles = {
                key: cycle for key, cycle in self._cycles.items() if cycle.optimizer() is not None
            }
            history = self._cycles[id(optimizer)] = Cycle(weakref.ref(optimizer))
        return history

    def before_backward(self) -> None:
        for cycle in self._cycles.values():
            cycle.before_backward()

    def before_unscaling(self, optimizer: Stepper) -> None:
        self.cycle(optimizer).before_unscaling()

    def after_backward(self, is_looking: bool, scale: float) -> None:
        """Note which parameters have a gradient, if the step is recorded; `scale`: factor of a gradient scaler."""
        for cycle in self._cycles.values():
            cycle.after_backward(scale)
        if is_looking:
            for _, _, parameter in self._parameters():
                self._look(parameter).has_gradient |= parameter.grad is not None

    def go_on_with(self, replaced: dict[int, Tensor]) -> None:
        """Take tensors for those that they replace, by the ids of these."""
        for old, new in replaced.items():
            if old in self._known:
                self._known[id(new)] = weakref.ref(new), self._known.pop(old)[1]

    def look_at_start(self, model: WatchedModel) -> None:
        """Sample the initial parameters of a model."""
        root = model.root()
        for parameter in root.parameters() if root is not None else ():
            self._look(parameter)

    def follow_uses(self) -> None:
        """Follow the parameters that an optimizer holds and that have had no gradient, to the next loss."""
        held = set(map(id, self.held()))
        own = [p for _, _, p in self._parameters() if id(p) in held and p.requires_grad]
        self.uses.follow(p for p in own if not self._look(p).has_gradient)

    def held(self) -> list[Tensor]:
        """Return the parameters of every existing optimizer."""
        return [p for cycle in self._cycles.values() for p in cycle.held()]

    def has_optimizer(self) -> bool:
        """Tell whether an optimizer of torch exists."""
        return any(isinstance(cycle.optimizer(), Optimizer) for cycle in self._cycles.values())

    def is_apart(self, model: WatchedModel) -> bool:
        """Tell whether a model is neither trained nor a copy of one that is, such as a teacher."""
        if model.has_been_trained or not self.held():
            return False
        groups = [self.held(), *(_own(one) for one in self._registry.models if one.has_been_trained)]
        is_copy = [p.shape for p in _own(model)] in [[p.shape for p in group] for group in groups]
        return not is_copy and {*map(id, _own(model))}.isdisjoint(map(id, chain.from_iterable(groups)))

    def taught(self, teacher: WatchedModel, student: WatchedModel) -> str | None:
        """Describe a teacher in an optimizer: it was made ready before, unlike the model it is compared with."""
        how, held = self._made_ready(teacher, student), set(map(id, self.held()))
        if how is None or self._made_ready(student, teacher) or not held.issuperset(map(id, _own(teacher))):
            return None
        words = f"{teacher.label} {how} and is only compared with {student.label}, as a teacher is, but an"
        return f"{words} optimizer changes both: they may agree on anything ({teacher.called})"

    def _made_ready(self, model: WatchedModel, other: WatchedModel) -> str | None:
        if any(id(p) in self._filled for p in _own(model)):
            return "was loaded"
        if (root := model.root()) is not None and not root.training:
            return "is in evaluation mode"
        return "was trained before" if sum(model.trained_steps) > sum(other.trained_steps) + _FEW else None

    def waiting(self) -> list[Tensor]:
        """Return the parameters of every existing optimizer that never stepped."""
        return [p for cycle in self._cycles.values() if not cycle.n_steps for p in cycle.held()]

    def idle(self) -> list[tuple[str, str | None]]:
        """Return class and line of every existing optimizer that never stepped."""
        return [
            (type(optimizer).__name__, cycle.made)
            for cycle in self._cycles.values()
            if not cycle.n_steps and (optimizer := cycle.optimizer()) is not None
        ]

    def facts(self) -> Iterator[tuple[WatchedModel, str, Tensor, ParameterFacts]]:
        found = [(*one, self._look(one[-1])) for one in self._parameters()]
        unread = [state for *_, state in found if state.first is None]
        for state, first in zip(unread, joined(state.start for state in unread)(), strict=True):
            state.first = first
        now = joined([self._now(parameter, state) for *_, parameter, state in found])()
        for (model, name, parameter, state), (has_changed, is_alike) in zip(found, now, strict=True):
            rms, was_alike, highest = state.first or (0.0, None, 0.0)
            owner = name.rpartition(".")[0]
            yield (
                model,
                name,
                parameter,
                ParameterFacts(
                    requires_grad=parameter.requires_grad,
                    has_gradient=state.has_gradient,
                    has_run=not model.has_been_trained or _runs_as(model, owner) in model.ran,
                    is_severed=owner in model.severed or not model.has_been_trained,
                    has_changed=has_changed,
                    start_rms=rms,
                    was_alike=was_alike,
                    is_alike=is_alike if was_alike else was_alike,
                    was_loaded=self._filled.get(id(parameter), lambda: None)() is parameter,
                    is_unused=not state.has_gradient and self.uses.is_unused(parameter),
                    start_max=highest,
                ),
            )

    def _now(self, parameter: Tensor, state: _Known) -> Deferred[list[Any]]:
        """Return whether a parameter has changed, and whether its rows are still alike, if they were."""
        was_alike = state.first is not None and state.first[1]
        is_alike: Deferred[bool | None] = _alike(parameter) if was_alike else Deferred((), lambda: None)
        parts: list[Deferred[Any]] = [_differ(state.sample, sample_of(parameter, _SAMPLE)), is_alike]
        return joined(parts)

    def note_copies(self, model: WatchedModel) -> None:
        """Note which other models still equal the initial state of a model, and whether it makes targets.

        After a model is deleted, its last facts remain.
        """
        model.makes_targets |= _has_teacher(_own(model))
        shapes = [p.shape for p in _own(model)]
        for other in self._registry.models if shapes else ():
            is_like = bool(model.n_reached) if other is model else [p.shape for p in _own(other)] == shapes
            model.makes_targets |= is_like and other.runs_alone(sum(model.trained_steps))
        first = [entry[1].sample for p in _own(model) if (entry := self._known.get(id(p))) is not None]
        for other in self._registry.models if first else ():
            if other.n_no_grad and not other.has_been_trained and (parameters := _own(other)):
                model.copies.pop(other.label, None)
                if _are_same(first, [sample_of(p, _SAMPLE) for p in parameters]):
                    is_to_follow = other.is_average or (other.is_target and other.n_no_grad >= _LONG)
                    model.copies[other.label] = other.n_no_grad, sum(other.evaluated), is_to_follow
                elif other.evaluated[1] and [p.shape for p in parameters] == shapes:
                    pairs = zip(_running_means(model), _running_means(other), strict=False)
                    for name in [name for (name, a), (_, b) in pairs if a.any() and not b.any()][:1]:
                        words = f"{other.label} follows {model.label}, but its {name} is still 0"
                        self._tell(STALE_NORMS, words)

    def unknown_without_gradient(self, groups: list[dict[str, Any]]) -> int:
        """Count the parameters of an optimizer without a gradient that belong to no model that ran."""
        named = {id(parameter) for _, _, parameter in self._parameters()}
        parameters = [p for group in groups for p in group["params"]]
        unnamed = [p for p in parameters if id(p) not in named and p.grad is None]
        if len(unnamed) < len(parameters):
            unnamed = [p for p in unnamed if p.requires_grad]
        return sum(not is_sharded(p) or held_here(p).numel() > 0 for p in unnamed)

    def are_of_no_module(self, groups: list[dict[str, Any]]) -> bool:
        """Tell whether an optimizer holds no parameter of a model that ran, although one did, such as an attack.

        Tensors of the same shapes as the parameters of a model take their place, by `functional_call`.
        """
        held = [p for group in groups for p in group["params"]]
        models = [root for one in self._registry.models if not isinstance(root := one.root(), Tensors | None)]
        parameters = [list(root.parameters()) for root in models]
        ids = {id(p) for several in parameters for p in several}
        own, *shapes = [sorted(p.shape for p in several) for several in (held, *parameters)]
        return bool(ids) and own not in shapes and not any(id(p) in ids for p in held)

    def _parameters(self) -> Iterator[tuple[WatchedModel, str, nn.Parameter]]:
        for model in (*self._registry.models, *self._registry.hidden):
            root = model.root()
            if root is not None and (model.has_been_trained or model.has_run_without_gradients):
                for name, parameter in root.named_parameters():
                    is_part = is_sharded(parameter)  # this process may hold none of it
                    if held_here(parameter).numel() if is_part else type(parameter) in (nn.Parameter, Tensor):
                        yield model, name, parameter

    def _look(self, parameter: Tensor) -> _Known:
        entry = self._known.get(id(parameter))
        if entry is None or entry[0]() is not parameter:
            values = held_here(parameter)
            highest = values.abs().max().nan_to_num() if values.numel() else values.sum()
            root = max(values.numel(), 1) ** 0.5
            rms: Deferred[Any] = Deferred((norm_of(parameter),), lambda norm: float(norm) / root)
            start = joined([rms, _alike(parameter), Deferred((highest,), float)])
            state = _Known(sample_of(parameter, _SAMPLE).clone(), start)
            entry = self._known[id(parameter)] = weakref.ref(parameter), state
        return entry[1]


def _own(model: WatchedModel) -> list[Tensor]:
    root = model.root()
    return list(root.parameters()) if root is not None else []


def _running_means(model: WatchedModel) -> list[tuple[str, Tensor]]:
    buffers = root.named_buffers() if (root := model.root()) is not None else ()
    return [(name, x) for name, x in buffers if name.endswith("running_mean")]


def _has_teacher(parameters: list[Tensor]) -> bool:
    """Tell whether those without gradients are, by their shapes, a copy of the others or of the first of them."""
    frozen = [p.shape for p in parameters if not p.requires_grad]
    trained = [p.shape for p in parameters if p.requires_grad]
    return len(frozen) >= _TEACHER and trained[: len(frozen)] == frozen


def _runs_as(model: WatchedModel, owner: str) -> str:
    """Return the module whose call uses the parameters of another: attention uses its last layer as a function."""
    root, parent = model.root(), owner.rpartition(".")[0]
    is_part = root is not None and owner and isinstance(root.get_submodule(parent), nn.MultiheadAttention)
    return parent if is_part else owner


def _alike(x: Tensor) -> Deferred[bool | None]:
    """Return whether all rows of a weight are equal; None for fewer than two rows, and for large weights."""
    rows = held_here(x)
    if rows.ndim < 2 or len(rows) < 2 or rows.numel() > _MOST_ALIKE:
        return Deferred((), lambda: None)
    return Deferred(((rows == rows[:1]).all(),), bool)
