"""A training beside one that was fine. Standard library only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deviation:
    """One way in which a run differs from the run that it is compared with.

    Attributes:
        kind: the link of the causal chain: `arguments`, `model`, `mode`, `optimizer`, `criterion`, `input`,
            `parameter`, `loss`, `update` or `layer`.
        where: the layer, parameter, optimizer or criterion; empty for the run as a whole.
        step: the first recorded step that differs; None for what holds over the whole run.
        here, reference: the two values, as printed.
    """

    kind: str
    where: str
    step: int | None
    here: str
    reference: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run beside one that was fine.

    Attributes:
        reference: the result that it is compared with, as typed.
        equal_steps: steps, from the first, whose losses are equal to six digits; 0 where the runs began otherwise.
        deviations: in the order of the causal chain, within a link by step.
    """

    reference: str
    equal_steps: int
    deviations: tuple[Deviation, ...]
