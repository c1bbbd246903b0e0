"""What is certain of the optimizers of a training, and of the schedules of their learning rates."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """What is certain of one optimizer.

    Attributes:
        made: the line that made it; None where it was made before anybody looked.
        cycles: from step to step, that were looked at; of these `uncleared`: where the gradients of the step before
            were never cleared; `emptied`: were cleared behind the backward pass; `scaled`: are of an enlarged loss.
        held: parameters; `strangers`: those that no model has that was seen to run, without a gradient.
        weight_decay: the highest of its groups.
        stale: the last recorded steps before which its averages and counters were the same, though it stepped.
        remade: steps, each by an optimizer that was made for it, behind another that took only one.
        repeated: the last recorded steps whose gradients were, to the bit, those of the recorded step before.
    """

    optimizer: str
    made: str | None
    cycles: int
    uncleared: int
    emptied: int
    held: int
    strangers: int
    maximizes: bool
    scaled: int = 0
    weight_decay: float = 0.0
    stale: int = 0
    remade: int = 0
    repeated: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A schedule of the learning rate that knows how long it is.

    Attributes:
        made: the line that made it.
        total: steps that it is made for; `used`: those that it was told of.
        steps: those that its optimizer took.
    """

    schedule: str
    optimizer: str
    made: str | None
    total: int
    used: int
    steps: int
