"""One optimizer and its steps."""

import weakref
from dataclasses import dataclass, field

from torch import Tensor
from torch.optim import Optimizer

from modelscope_cli.watching.parameters import StepWatch
from modelscope_cli.watching.roster import Roster
from modelscope_cli.watching.tally import Sums

LayerRow = tuple[str, str, int, str, Sums]  # model, layer, call, type, what was seen
# model, name, the tensor itself, and its gradient norm, weight norm and relative change
ParameterRow = tuple[str, str, Tensor, tuple[float | None, float, float | None]]


@dataclass(slots=True)
class StepReport:
    """What one optimizer step showed.

    Attributes:
        step: counted from 0, by this optimizer.
        ms: since the end of the step before; None for the first.
        is_recorded: whether the layers and parameters were looked at.
    """

    optimizer: str
    index: int
    step: int
    loss: float | None
    lr: list[float]
    ms: float | None
    is_recorded: bool
    layers: list[LayerRow] = field(default_factory=list)
    parameters: list[ParameterRow] = field(default_factory=list)


@dataclass(slots=True)
class Clock:
    """An optimizer that has stepped; its label is its class, with `#2` for a second one."""

    optimizer: "weakref.ref[Optimizer]"
    label: str
    index: int
    step: int = 0
    ended: float = 0.0

    @classmethod
    def of(cls, optimizer: Optimizer, index: int) -> "Clock":
        kind = type(optimizer).__name__
        return cls(weakref.ref(optimizer), f"{kind}#{index + 1}" if index else kind, index)

    def name_rows(self, watch: StepWatch, roster: Roster) -> list[ParameterRow]:
        """Return the rows of a step with the names of the parameters; `group0.3` where no model ran that has it."""
        optimizer = self.optimizer()
        assert optimizer is not None
        names = roster.parameter_names()
        rows = iter(watch.finish())
        return [
            (
                *names.get(id(parameter), (self.label, f"group{number}.{place}")),
                parameter,
                next(rows),
            )
            for number, group in enumerate(optimizer.param_groups)
            for place, parameter in enumerate(group["params"])
        ]
