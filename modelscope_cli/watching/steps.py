"""One optimizer and its steps."""

import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from torch import Tensor

from modelscope_cli.hooks.fetch import Deferred, joined
from modelscope_cli.records.training_facts import Birth
from modelscope_cli.watching.bookkeeping import Bookkeeper
from modelscope_cli.watching.criteria import CriterionKey, CriterionSums
from modelscope_cli.watching.cycle import COUNTED, Cycle
from modelscope_cli.watching.model_inputs import Entering, EnteringKey
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel
from modelscope_cli.watching.parameters import Stepper, StepWatch
from modelscope_cli.watching.replicas import ReplicaReport
from modelscope_cli.watching.schedule import Budget, is_recorded
from modelscope_cli.watching.step_sums import Sums, reduce_copies

LayerRow = tuple[str, str, int, str, Sums]  # model, layer, call, type, sums
Figures = tuple[float | None, float, float | None]  # gradient norm, weight norm, relative change
ParameterRow = tuple[str, str, Tensor, Figures]  # model, name, the tensor itself
_HIGHEST_MOMENTUM, _USUAL_MOMENTUM = 0.95, 0.9


@dataclass(slots=True)
class StepReport:
    """The measurements of one optimizer step."""

    optimizer: str
    step: int  # counted from 0, by this optimizer
    loss: float | None
    lr: list[float]
    is_recorded: bool  # whether layers and parameters were recorded
    layers: list[LayerRow] = field(default_factory=list)
    parameters: list[ParameterRow] = field(default_factory=list)
    entering: list[tuple[str, EnteringKey, Entering]] = field(default_factory=list)
    # Sums over the inputs of the losses
    criteria: dict[CriterionKey, CriterionSums] = field(default_factory=dict)
    # Those of evaluation since the previous step
    evaluated: dict[CriterionKey, CriterionSums] = field(default_factory=dict)
    replicas: ReplicaReport | None = None  # checksums to compare ranks; None in a single process

    def fetched(self) -> Deferred[list[None]]:
        """Bring the sums of the criteria to the CPU."""
        return joined(sums.fetched() for sums in (*self.criteria.values(), *self.evaluated.values()))

    def record(self, models: list[WatchedModel]) -> Deferred[None]:
        """Read what was recorded of the layers and the inputs of some models."""
        layers = [(model, key, sums) for model in models for key, sums in model.layer_sums().items()]
        reduce_copies([sums for *_, sums in layers])
        entering = [(model.label, key, sums) for model in models for key, sums in model.entering.items()]
        parts: list[Deferred[Any]] = [
            joined(sums.row() for *_, sums in layers),
            joined(sums.row() for *_, sums in entering),
        ]

        def keep(fetched: list[Any]) -> None:
            self.layers = [
                (model.label, *key, model.types[key], sums)
                for (model, key, _), sums in zip(layers, fetched[0], strict=True)
            ]
            self.entering = [
                (label, key, sums) for (label, key, _), sums in zip(entering, fetched[1], strict=True)
            ]

        return joined(parts).then(keep)


class Listener(Protocol):
    """Receives the observations of a recorder."""

    def on_step(self, report: StepReport) -> None:
        """Called after every optimizer step; may raise to stop the script."""

    def on_unstepped(self) -> None:
        """Called after 1, 2, 4 ... backward passes while there was no step."""

    def on_birth(self, birth: Birth) -> None:
        """Called before the step in which the first non-finite value occurred."""

    def on_event(self, step: int | None, kind: str, message: str) -> None:
        """Called at a notable event."""


def unusual(optimizer: Stepper, group: dict[str, Any]) -> dict[str, Any]:
    """Return the usual values of the settings of a group that are unusual.

    They are the defaults of the optimizer's class, and a momentum of 0.9 in place of one above 0.95.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(type(optimizer).__init__).parameters.items():
        value, usual = group.get(name), parameter.default
        if isinstance(value, Tensor):
            continue
        if name in ("betas", "eps", "alpha", "dampening", "rho", "etas") and value != usual:
            found[name] = usual
    if group.get("momentum", 0) > _HIGHEST_MOMENTUM:
        found["momentum"] = _USUAL_MOMENTUM
    return found


def _numbers(value: float | tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(float, value)) if isinstance(value, tuple | list) else (float(value),)


def is_running(called: FrameType) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not called:
        frame = frame.f_back
    return frame is not None


@dataclass(slots=True)
class OpenStep:
    """A step that has begun, called in `frame`; one that raises is never closed."""

    frame: FrameType
    watch: StepWatch | None = None


@dataclass(slots=True)
class Clock:
    """An optimizer that has stepped; its label is its class, with `#2` for the second of that class."""

    optimizer: "weakref.ref[Stepper]"
    label: str
    cycle: Cycle  # the history of its gradients, which outlives it
    step: int = 0
    is_due: bool = False  # the next step is recorded, as the previous one was not finite
    is_planned: bool = False  # the schedule names the current step
    is_owed: bool = False  # a step was due and exceeded the budget
    last_recorded: int = 0
    decided: tuple[int, bool] = (-1, False)  # the current step, and whether it is recorded
    was_finite: bool = True
    is_loose: bool = False  # it holds no parameter of a model, although models ran
    rates: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)  # the last facts about it

    def decide(self, every: int | None, budget: Budget) -> None:
        """Decide, once, whether the current step is recorded; see `Recorder` for `every`."""
        if self.decided[0] == self.step:
            return
        self.is_planned = is_recorded(self.step, every, self.decided[0])
        self.is_planned |= every is None and budget.is_last(self.step)
        self.is_owed |= self.is_planned
        is_now = self.is_owed and (every is not None or budget.allows(self.step, self.last_recorded))
        if is_now:
            self.is_owed, self.last_recorded = False, self.step
        self.decided = self.step, is_now

    @property
    def unseen(self) -> str:
        """Say that there are no layers."""
        what = f"no layers: no model that {self.label} trains was seen running"
        why = "is the model compiled inside a function or by model.compile(), or not an nn.Module?"
        return f"{what} ({why})"

    def take_facts(self, bookkeeper: Bookkeeper) -> None:
        """Update the facts about the optimizer, if it still exists."""
        optimizer = self.optimizer()
        if optimizer is not None:
            groups = optimizer.param_groups
            self.facts |= {
                "optimizer": self.label,
                "held": sum(len(group["params"]) for group in groups),
                "strangers": bookkeeper.unknown_without_gradient(groups),
                "maximizes": any(group.get("maximize") for group in groups),
                "weight_decay": max((float(group.get("weight_decay") or 0) for group in groups), default=0.0),
                "unusual": [
                    (name, *map(_numbers, (groups[0][name], usual)))
                    for name, usual in (unusual(optimizer, groups[0]) if groups else {}).items()
                ],
                "is_loose": self.is_loose,
            }
        self.facts |= {"made": self.cycle.made, "cycles": self.cycle.n}
        self.facts |= {name: getattr(self.cycle, name) for name in COUNTED}

    def name_rows(self, figures: list[Figures], registry: ModelRegistry) -> list[ParameterRow]:
        """Return the rows of a step with the names of the parameters; `group0.3` for one of no model that ran."""
        optimizer = self.optimizer()
        assert optimizer is not None
        names = registry.parameter_names()
        rows = iter(figures)
        return [
            (*names.get(id(parameter), (self.label, f"group{number}.{place}")), parameter, next(rows))
            for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        ]


@dataclass(slots=True)
class EndedStep:
    """A step whose numbers may still be on the device."""

    report: StepReport
    clock: Clock
    models: list[WatchedModel]  # those that it changed
    # The loss, whether the gradients of a step that is not followed are finite, and the figures of the parameters
    numbers: Deferred[list[Any]]

    @property
    def is_computed_later(self) -> bool:
        """Whether reading the numbers waits for a device."""
        return any(x.device.type not in ("cpu", "meta") for x in self.numbers.tensors)


class Clocks:
    """The optimizers that have stepped; those of deleted ones remain."""

    def __init__(self, bookkeeper: Bookkeeper) -> None:
        self._bookkeeper = bookkeeper
        self._clocks: dict[int, Clock] = {}
        self._kinds = Counter[str]()

    def all(self) -> Collection[Clock]:
        return self._clocks.values()

    def find(self, optimizer: Stepper) -> Clock | None:
        """Return the clock of an optimizer; None if it has not stepped."""
        clock = self._clocks.get(id(optimizer))
        return clock if clock is not None and clock.optimizer() is optimizer else None

    def of(self, optimizer: Stepper) -> Clock:
        """Return the clock of an optimizer; one that replaces another continues its clock."""
        clock = self.find(optimizer)
        if clock is None:
            cycle = self._bookkeeper.cycle(optimizer)
            clock = next((one for one in self._clocks.values() if one.cycle is cycle), None)
            if clock is not None:
                clock.optimizer = weakref.ref(optimizer)
                self._clocks = {key: one for key, one in self._clocks.items() if one is not clock}
            else:
                kind = type(optimizer).__name__
                self._kinds[kind] += 1
                label = f"{kind}#{self._kinds[kind]}" if self._kinds[kind] > 1 else kind
                clock = Clock(weakref.ref(optimizer), label, cycle)
            self._clocks[id(optimizer)] = clock
        return clock

    def optimizer_facts(self) -> list[dict[str, Any]]:
        """Return the facts about every optimizer that has stepped, also of deleted ones."""
        for clock in self._clocks.values():
            clock.take_facts(self._bookkeeper)
        return [dict(clock.facts) for clock in self._clocks.values() if "held" in clock.facts]

    def schedule_facts(self) -> list[dict[str, Any]]:
        """Return the facts about every schedule of an optimizer that has stepped, also of deleted ones."""
        for clock in self._clocks.values():
            if (optimizer := clock.optimizer()) is not None:
                self._bookkeeper.note_schedules(optimizer, clock.label, clock.step)
        return [dict(known) for _, known in self._bookkeeper.schedules if "optimizer" in known]
