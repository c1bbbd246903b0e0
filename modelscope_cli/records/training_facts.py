"""Facts about a training: the first non-finite values, optimizers and ranks."""

from dataclasses import dataclass

from modelscope_cli.records.naming import label

LOSS, INPUT, OUTPUT = "loss", "input", "output"
BETWEEN, GRADIENT, PARAMETER = "between", "gradient", "parameter"
UNSEEN = "unseen"
"""Where NaN and infinite values begin; `BETWEEN` is what a module computes between its layers, `UNSEEN` is
anywhere in a step whose layers were not looked at."""


@dataclass(frozen=True, slots=True)
class Birth:
    """The first non-finite value of a run.

    Attributes:
        what: one of `LOSS`, `INPUT`, `OUTPUT`, `BETWEEN`, `GRADIENT`, `UNSEEN`, and `PARAMETER` if the step
            itself produced it.
        name: of the layer or the parameter in the model; empty for the model itself, and for the loss.
        call: which call of the layer.
    """

    what: str
    step: int
    model: str
    name: str
    call: int

    @property
    def words(self) -> str:
        """Return the description: `conv2 is not finite`."""
        name = label(self.name or self.model, self.call)
        return {
            LOSS: "the loss is not finite, although the output of every layer is",
            INPUT: f"the input of {name} is not finite",
            OUTPUT: f"{name} is not finite",
            BETWEEN: f"what {name} computes between its layers is not finite",
            GRADIENT: f"the gradient of {name} is not finite",
            UNSEEN: f"the loss or a gradient of {name}, whose layers were not recorded in step {self.step}",
            PARAMETER: f"{name} is not finite after step {self.step}, although its gradients were",
        }[self.what]


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """Facts about one optimizer.

    Attributes:
        made: the line that made it; None if it was made before recording began.
        cycles: recorded intervals between steps; of these `uncleared`: gradients of the step before were never
            cleared; `emptied`: cleared after the backward pass; `discarded`: cleared before each of several
            backward passes; `scaled`: of a scaled loss; `shrunk`: became smaller before a gradient scaler
            unscaled them.
        held: number of parameters; `strangers`: those without a gradient that belong to no model that ran.
        weight_decay: the highest of its groups.
        unusual: settings that differ from the usual ones: name, values, usual values.
        is_loose: it holds no parameter of a model, although models ran: an attack, a latent.
        remade: steps of one that is made anew before each step.
        began, ended: the first and the last of its steps, among those of all optimizers.
        restored: number of steps that go on with the averages of earlier ones, after the weights before the first
            step were loaded again.
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
    shrunk: int = 0
    discarded: int = 0
    restored: int = 0
    unusual: tuple[tuple[str, tuple[float, ...], tuple[float, ...]], ...] = ()
    is_loose: bool = False
    remade: int = 0
    began: int = 0
    ended: int = 0


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A schedule of the learning rate.

    Attributes:
        made: the line that made it.
        total: steps that it is made for, 0 if unknown; `used`: its own steps.
        steps: those that its optimizer took.
        base: the lowest learning rate that its optimizer was made with, or the peak of OneCycleLR.
    """

    schedule: str
    optimizer: str
    made: str | None
    total: int
    used: int
    steps: int
    base: float | None = None


@dataclass(frozen=True, slots=True)
class TimeFacts:
    """Where the time of a script went.

    Attributes:
        steps: of all optimizers, without the first, which takes longer.
        passes: forwards of models, with and without gradients.
        seconds: of those steps, in `data` (waiting for it), `forward`, `backward`, `optimizer`, `validation`,
            `device` (waiting for an accelerator), `watching` (this tool) and the `rest`. Of a script without steps,
            of all of it.
        workers: of the data loaders waited for, the most; None without any.
    """

    steps: int
    passes: int
    seconds: dict[str, float]
    workers: int | None

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def share(self, part: str) -> float:
        return self.seconds.get(part, 0.0) / self.total if self.total else 0.0


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Ranks that hold different weights, where they should hold the same.

    Attributes:
        model, name: the first parameter that differs; `ranks`: those that differ from the majority, or all
            ranks without a majority.
        step: the step that left the weights different, or before which they were changed.
        after: the last step at which they were found equal, if the exact step is not known; else None.
        distance: their approximate relative difference at first.
        cure: what to do; `place`: the line of the script that it is about.
    """

    model: str
    name: str
    ranks: tuple[int, ...]
    step: int
    after: int | None
    distance: float | None
    message: str
    cure: str
    place: str | None


@dataclass(frozen=True, slots=True)
class RankFacts:
    """Whether several ranks hold the same weights.

    Attributes:
        compared: number of parameters that should be the same on every rank.
        apart: number of parameters without evidence that they should be the same; `sharded`: number of those of
            which each rank holds a part.
        is_averaged_rarely: the weights differ between steps at which they are averaged; `averaged_at`: one of
            these steps.
        differs_by: a difference within rounding; None if all bits are equal.
    """

    compared: int
    apart: int
    sharded: int
    is_averaged_rarely: bool = False
    averaged_at: int | None = None
    differs_by: float | None = None
    disagreement: Disagreement | None = None
