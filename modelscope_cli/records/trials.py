"""What `watch --try-fixes` found: trainings run again with one thing changed. Standard library only."""

from dataclasses import dataclass, field
from typing import Annotated

from modelscope_cli.records.display import Row, column, figure, hidden, share, words

PROVED, ONCE, A_LITTLE, NO, BROKE = "proved", "learns", "slightly better", "no better", "broke"
"""Whether a change makes a training learn: with another seed too; with the seed of the script; less than that; not
at all; it cannot be told, as the script ended with an error or the change found nothing to change."""

OWN, CROSS_ENTROPY = "loss", "cross-entropy of the predictions"
"""What trials are compared by: the loss of the script, or the mean cost of its predictions in nats."""

GRADIENT, DATA, MODEL = "gradient", "data", "model"
"""Where the cause is if no change helps: the gradient of a layer, the data or labels, the model or its loss."""


@dataclass(frozen=True, slots=True)
class TrialRow(Row):
    """One run of the script with one thing changed.

    Attributes:
        name: `no clipping`; `changed`: in words, with the value that was replaced.
        steps: optimizer steps that it was followed for.
        loss_first, loss_last: over the first three and the last fifth of these steps; `measure`: of what, `OWN`, or
            `CROSS_ENTROPY` where it differs from that, or the change alters the scale of the loss.
        metric: accuracy of the predictions in the last steps, 0 to 1; None without labels of classes.
        seed: added to the seeds that the script sets.
        helps: one of `PROVED`, `ONCE`, `A_LITTLE`, `NO` and `BROKE`; None for the same training again.
        reason: why it broke; what an examination found.
    """

    name: Annotated[str, words("trial", rank=0)]
    changed: Annotated[str, words(rank=0, wraps=True)]
    steps: Annotated[int, column()]
    loss_first: Annotated[float | None, figure("loss first")]
    loss_last: Annotated[float | None, figure("loss last", rank=0)]
    metric: Annotated[float | None, share("accuracy", rank=0)]
    helps: Annotated[str | None, words("result", rank=0)]
    seed: Annotated[int, hidden()] = 0
    reason: Annotated[str | None, words(wraps=True)] = None
    measure: Annotated[str, words()] = OWN


@dataclass(frozen=True, slots=True)
class Fix:
    """The change that makes a training learn, with more than one seed.

    Attributes:
        trial: name of the trial.
        sentence: what was proved, with the loss; `write`: what to write in the script.
        source: file and line of what to change, `train.py:31`; None where that is not known.
        codes: of the rules whose finding it proves.
        is_general: it makes many trainings better, and so does not exclude the causes that rules found.
        steps: that were compared; loss_last, metric: with the change; loss_without, metric_without: without it.
    """

    trial: str
    sentence: str
    write: str
    source: str | None
    codes: tuple[str, ...]
    steps: int
    loss_last: float
    loss_without: float | None
    metric: float | None
    metric_without: float | None
    is_general: bool = False


@dataclass(frozen=True, slots=True)
class Trials:
    """All trials of a run.

    Attributes:
        rows: in the order in which they were run, first the script unchanged.
        fix: None where no change makes it learn.
        outcome: what follows in one sentence: what was proved, what is excluded, or why nothing was tried.
        refuted: codes of the rules whose cause was removed, and it did not help.
        in_vain: by the code of a rule, what was changed for it, in words, if nothing of it helped.
        examined: where the examinations point if no change helps: `GRADIENT`, `DATA` or `MODEL`; None if nowhere.
        place: the line of the script that this is about.
    """

    rows: tuple[TrialRow, ...] = ()
    fix: Fix | None = None
    outcome: str | None = None
    refuted: tuple[str, ...] = ()
    in_vain: dict[str, list[str]] = field(default_factory=dict)
    examined: str | None = None
    place: str | None = None
