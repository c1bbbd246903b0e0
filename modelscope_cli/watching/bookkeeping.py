"""What is certain after a few steps: who holds a parameter, who clears its gradient, and whether it is used."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from modelscope_cli.hooks.torch_private import left_alone_by_compiler
from modelscope_cli.records.watch import ParameterFacts
from modelscope_cli.watching.guard import replaced
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel
from modelscope_cli.watching.parameters import held_here, is_sharded, norm_of, sample_of
from modelscope_cli.watching.place import place_of_caller

# From step to step: so many of the first are looked at, for reading a gradient waits for the device.
_CYCLES = 16
_LENGTHS = "total_steps", "T_max", "total_iters"  # of a schedule, as torch's call it
_PROBES = 4  # parameters of an optimizer that stand for all of them
_SAMPLE = 64  # elements of a parameter that show whether anybody changes it
_MOST_ALIKE = 1 << 22  # elements: larger parameters are not searched for equal rows


@dataclass(slots=True)
class Cycle:
    """What happened to the gradients of one optimizer since its last step.

    Attributes:
        made: the line that made it; None where it was made before anybody looked.
        n: cycles that were looked at, with a backward pass in them.
        uncleared: those in which the gradients of the step before were never cleared.
        emptied: those in which there were gradients after the backward pass, and none at the step.
        scaled: those whose loss a gradient scaler had enlarged, and whose gradients nobody has touched since.
    """

    optimizer: "weakref.ref[Optimizer]"
    made: str | None = None
    n: int = 0
    uncleared: int = 0
    emptied: int = 0
    scaled: int = 0
    n_steps: int = 0
    _probes: list["weakref.ref[Tensor]"] = field(default_factory=list)
    _n_backward: int = 0
    _was_clear: bool = False
    _has_gradient: bool = False
    _scaled: list[float] = field(default_factory=list)  # norms of gradients, where a scaler enlarged the loss

    def before_backward(self) -> None:
        if self._is_looking() and not self._was_clear:
            self._was_clear = not self._any_gradient()

    def after_backward(self, scale: float) -> None:
        if self._is_looking():
            self._n_backward += 1
            self._has_gradient = self._any_gradient()
            self._scaled = self._norms() if scale != 1 else []

    def before_step(self) -> None:
        if self._is_looking() and self._n_backward:
            self.n += 1
            self.uncleared += not self._was_clear
            self.emptied += self._has_gradient and not self._any_gradient()
            self.scaled += any(self._scaled) and self._is_untouched()

    def after_step(self) -> None:
        self.n_steps += 1
        self._n_backward, self._was_clear, self._has_gradient = 0, False, False
        if not self._probes:
            self._choose_probes()

    def _is_looking(self) -> bool:
        return bool(self._probes) and self.n < _CYCLES

    def _choose_probes(self) -> None:
        optimizer = self.optimizer()
        held = [] if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]
        moved = [p for p in held if p.grad is not None] or [p for p in held if p.requires_grad]
        places = {round(i * (len(moved) - 1) / (_PROBES - 1)) for i in range(_PROBES)} if moved else set()
        self._probes = [weakref.ref(moved[place]) for place in sorted(places)]

    def _gradients(self) -> list[Tensor]:
        alive = [p for probe in self._probes if (p := probe()) is not None]
        return [p.grad for p in alive if p.grad is not None]

    def _any_gradient(self) -> bool:
        return any(bool(held_here(gradient).any()) for gradient in self._gradients())

    def _is_untouched(self) -> bool:
        """Tell whether the gradients are as backward left them; a fused optimizer unscales them by itself."""
        is_told = getattr(self.optimizer(), "grad_scale", None) is not None
        return not is_told and self._norms() == self._scaled

    def _norms(self) -> list[float]:
        return [float(norm_of(gradient)) for gradient in self._gradients()]


@dataclass(slots=True)
class _Known:
    """A parameter since it was first looked at."""

    sample: Tensor
    rms: float
    was_alike: bool | None
    has_gradient: bool = False


class Bookkeeper:
    """Keeps an account of the optimizers and parameters of a process."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._cycles: dict[int, Cycle] = {}
        self._known: dict[int, tuple[weakref.ref[Tensor], _Known]] = {}
        self._schedules: list[tuple[weakref.ref[LRScheduler], str | None]] = []

    @contextmanager
    def installed(self, guard: Callable[..., None]) -> Iterator[None]:
        """Note where optimizers are made while open."""
        original = Optimizer.__init__

        @functools.wraps(original)
        def noted(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            guard(self._made, optimizer)

        left_alone_by_compiler(noted, with_callees=False)
        scheduled = LRScheduler.__init__

        @functools.wraps(scheduled)
        def noted_schedule(schedule: LRScheduler, *args: Any, **kwargs: Any) -> None:
            scheduled(schedule, *args, **kwargs)
            guard(self._scheduled, schedule)

        with replaced((Optimizer, "__init__", noted), (LRScheduler, "__init__", noted_schedule)):
            yield

    def _scheduled(self, schedule: LRScheduler) -> None:
        self._schedules.append((weakref.ref(schedule), place_of_caller()))

    def schedules(self, label_of: Callable[[Optimizer], tuple[str, int] | None]) -> Iterator[dict[str, Any]]:
        """Give what is certain of every schedule that knows its length.

        Args:
            label_of: the label of an optimizer and the steps that it took; None where it has not stepped.
        """
        for known, made in self._schedules:
            schedule = known()
            total = next((n for name in _LENGTHS if isinstance(n := getattr(schedule, name, None), int)), 0)
            optimizer = getattr(schedule, "optimizer", None)
            labelled = label_of(optimizer) if isinstance(optimizer, Optimizer) else None
            if schedule is not None and labelled is not None and total > 0:
                yield {
                    "schedule": type(schedule).__name__,
                    "optimizer": labelled[0],
                    "made": made,
                    "total": total,
                    "used": schedule.last_epoch,
                    "steps": labelled[1],
                }

    def _made(self, optimizer: Optimizer) -> None:
        self.cycle(optimizer).made = place_of_caller()

    def cycle(self, optimizer: Optimizer) -> Cycle:
        """Return the account of one optimizer."""
        found = self._cycles.get(id(optimizer))
        if found is None or found.optimizer() is not optimizer:
            self._cycles = {
                key: cycle for key, cycle in self._cycles.items() if cycle.optimizer() is not None
            }
            found = self._cycles[id(optimizer)] = Cycle(weakref.ref(optimizer))
        return found

    def before_backward(self) -> None:
        for cycle in self._cycles.values():
            cycle.before_backward()

    def after_backward(self, is_looking: bool, scale: float) -> None:
        """Note which parameters have a gradient, where the step that is being prepared is recorded.

        Args:
            scale: by which a gradient scaler has enlarged it.
        """
        for cycle in self._cycles.values():
            cycle.after_backward(scale)
        if is_looking:
            for _, _, parameter in self._parameters():
                self._look(parameter).has_gradient |= parameter.grad is not None

    def look_at_start(self, model: WatchedModel) -> None:
        """Note what the parameters of a model are before anything changes them."""
        root = model.root()
        for parameter in root.parameters() if root is not None else ():
            self._look(parameter)

    def waiting(self) -> list[Tensor]:
        """Return the parameters of every optimizer that was made, is still there and never stepped."""
        return [
            p
            for cycle in self._cycles.values()
            if not cycle.n_steps and (optimizer := cycle.optimizer()) is not None
            for group in optimizer.param_groups
            for p in group["params"]
        ]

    def idle(self) -> list[tuple[str, str | None]]:
        """Return class and line of every optimizer that was made, is still there and never stepped."""
        return [
            (type(optimizer).__name__, cycle.made)
            for cycle in self._cycles.values()
            if not cycle.n_steps and (optimizer := cycle.optimizer()) is not None
        ]

    def facts(self) -> Iterator[tuple[WatchedModel, str, Tensor, ParameterFacts]]:
        """Give what is certain of every parameter of every model that ran."""
        for model, name, parameter in self._parameters():
            known = self._look(parameter)
            owner = name.rpartition(".")[0]
            yield (
                model,
                name,
                parameter,
                ParameterFacts(
                    requires_grad=parameter.requires_grad,
                    has_gradient=known.has_gradient,
                    has_run=_runs_as(model, owner) in model.ran or not model.has_been_trained,
                    is_severed=owner in model.severed or not model.has_been_trained,
                    has_changed=not torch.equal(sample_of(parameter, _SAMPLE), known.sample),
                    start_rms=known.rms,
                    was_alike=known.was_alike,
                    is_alike=_is_alike(parameter) if known.was_alike else known.was_alike,
                ),
            )

    def unknown_without_gradient(self, optimizer: Optimizer) -> int:
        """Count the parameters of an optimizer that no model that ran has, and that have no gradient."""
        named = {id(parameter) for _, _, parameter in self._parameters()}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        bare = [p for p in held if id(p) not in named and p.requires_grad and p.grad is None]
        return sum(not is_sharded(p) or held_here(p).numel() > 0 for p in bare)

    def _parameters(self) -> Iterator[tuple[WatchedModel, str, nn.Parameter]]:
        for model in (*self._registry.models, *self._registry.hidden):
            root = model.root()
            if root is not None and (model.has_been_trained or model.has_run_without_gradients):
                for name, parameter in root.named_parameters():
                    is_part = is_sharded(parameter)  # of which this process may hold nothing
                    if held_here(parameter).numel() if is_part else type(parameter) is nn.Parameter:
                        yield model, name, parameter

    def _look(self, parameter: Tensor) -> _Known:
        found = self._known.get(id(parameter))
        if found is None or found[0]() is not parameter:
            values = held_here(parameter)
            rms = float(norm_of(parameter))
            known = _Known(
                sample_of(parameter, _SAMPLE).clone(),
                rms / max(values.numel(), 1) ** 0.5,
                _is_alike(parameter),
            )
            found = self._known[id(parameter)] = weakref.ref(parameter), known
        return found[1]


def _runs_as(model: WatchedModel, owner: str) -> str:
    """Return the module whose call uses the parameters of one: attention uses its last layer by function."""
    root, parent = model.root(), owner.rpartition(".")[0]
    is_part = root is not None and owner and isinstance(root.get_submodule(parent), nn.MultiheadAttention)
    return parent if is_part else owner


def _is_alike(x: Tensor) -> bool | None:
    """Tell whether all rows of a weight are the same; None for less than two rows, and for what is too large."""
    rows = held_here(x)
    if rows.ndim < 2 or len(rows) < 2 or rows.numel() > _MOST_ALIKE:
        return None
    return bool((rows == rows[:1]).all())
