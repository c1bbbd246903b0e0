"""One optimizer and its steps."""

import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor

from modelscope_cli.watching.bookkeeping import COUNTED, Bookkeeper, Cycle
from modelscope_cli.watching.criteria import CriterionKey, CriterionSums
from modelscope_cli.watching.entering import Entering, EnteringKey
from modelscope_cli.watching.model_registry import ModelRegistry
from modelscope_cli.watching.parameters import Stepper, StepWatch
from modelscope_cli.watching.replicas import ReplicaReport
from modelscope_cli.watching.step_sums import Sums

LayerRow = tuple[str, str, int, str, Sums]  # model, layer, call, type, what was seen
Figures = tuple[float | None, float, float | None]  # gradient norm, weight norm, relative change
ParameterRow = tuple[str, str, Tensor, Figures]  # model, name, the tensor itself


@dataclass(slots=True)
class StepReport:
    """What one optimizer step showed.

    Attributes:
        step: counted from 0, by this optimizer.
        ms: since the end of the step before; None for the first.
        is_recorded: whether the layers and parameters were looked at.
        criteria: what the losses were computed from; `evaluated`: the same of evaluation since the step before.
        replicas: what the ranks should have in common; None in a single process.
    """

    optimizer: str
    step: int
    loss: float | None
    lr: list[float]
    ms: float | None
    is_recorded: bool
    layers: list[LayerRow] = field(default_factory=list)
    parameters: list[ParameterRow] = field(default_factory=list)
    entering: list[tuple[str, EnteringKey, Entering]] = field(default_factory=list)
    criteria: dict[CriterionKey, CriterionSums] = field(default_factory=dict)
    evaluated: dict[CriterionKey, CriterionSums] = field(default_factory=dict)
    replicas: ReplicaReport | None = None


def is_running(called: FrameType) -> bool:
    """Tell whether a function that was called has not yet ended, in this thread."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame is not called:
        frame = frame.f_back
    return frame is not None


@dataclass(slots=True)
class OpenStep:
    """A step that has begun, called by `frame`; one that raises never ends."""

    frame: FrameType
    watch: StepWatch | None = None

    def is_running(self) -> bool:
        return is_running(self.frame)


@dataclass(slots=True)
class Clock:
    """An optimizer that has stepped; its label is its class, with `#2` for the second of that class.

    Attributes:
        cycle: the account of its gradients, which outlives it.
        facts: what was last certain of it.
    """

    optimizer: "weakref.ref[Stepper]"
    label: str
    cycle: Cycle
    step: int = 0
    ended: float = 0.0
    is_due: bool = False  # the next step, whatever the schedule says: the one before went wrong
    is_owed: bool = False  # a step was due that could not be afforded
    decided: tuple[int, bool] = (-1, False)  # the step that is being prepared, and whether it is recorded
    was_finite: bool = True
    rates: list[float] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    def take_facts(self, bookkeeper: Bookkeeper) -> None:
        """Note what is certain of the optimizer now, be it gone or not."""
        optimizer = self.optimizer()
        if optimizer is not None:
            groups = optimizer.param_groups
            self.facts |= {
                "optimizer": self.label,
                "held": sum(len(group["params"]) for group in groups),
                "strangers": bookkeeper.unknown_without_gradient(groups),
                "maximizes": any(group.get("maximize") for group in groups),
                "weight_decay": max((float(group.get("weight_decay") or 0) for group in groups), default=0.0),
            }
        self.facts |= {"made": self.cycle.made, "cycles": self.cycle.n}
        self.facts |= {name: getattr(self.cycle, name) for name in COUNTED}

    def name_rows(self, figures: list[Figures], registry: ModelRegistry) -> list[ParameterRow]:
        """Return the rows of a step with the names of the parameters; `group0.3` where no model ran that has it."""
        optimizer = self.optimizer()
        assert optimizer is not None
        names = registry.parameter_names()
        rows = iter(figures)
        return [
            (
                *names.get(id(parameter), (self.label, f"group{number}.{place}")),
                parameter,
                next(rows),
            )
            for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
