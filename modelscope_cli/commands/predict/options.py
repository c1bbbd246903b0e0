"""The options of `modelscope predict`."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell.numbers import real

TOP = 5


class Scores(StrEnum):
    """What turns logits into scores."""

    auto = "auto"
    softmax = "softmax"
    sigmoid = "sigmoid"


DoctorOpt = Annotated[
    bool,
    typer.Option(
        "--doctor",
        help="Prepare the images in the usual wrong ways, one at a time, and count the predictions that change.",
    ),
]


@dataclass(frozen=True, slots=True)
class ScoreOptions:
    """What the classes are called, and how logits become scores."""

    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            metavar="FILE",
            help="Names of the classes, instead of those of the weights: one a line, a JSON list, or JSON "
            "{index: label}.",
        ),
    ] = None
    scores: Annotated[
        Scores,
        typer.Option(
            "--scores",
            help="softmax: exactly one class an image, the scores add up to 1. sigmoid: several classes or "
            "none, each scored on its own. auto: sigmoid where the model states it, else softmax.",
        ),
    ] = Scores.auto
    threshold: Annotated[
        float | None,
        real(
            "--threshold",
            min=0.0,
            max=1.0,
            metavar="P",
            help="With sigmoid: a class is on from this score, else from 0.5.",
        ),
    ] = None
    temperature: Annotated[
        float,
        real("--temperature", metavar="T", help="Divide the logits by this; above 1 is less sure."),
    ] = 1.0

    def refuse_idle(self, top: int, hook: Sequence[str] | None) -> None:
        """Refuse what `--doctor` has no use for.

        Raises:
            UsageError: exit code 2.
        """
        typed = {
            f"--top {top}": top != TOP,
            f"--scores {self.scores}": self.scores is not Scores.auto,
            f"--threshold {self.threshold}": self.threshold is not None,
            f"--temperature {self.temperature:g}": self.temperature != 1,
            f"--hook {(hook or ('',))[0]}": bool(hook),
        }
        for option in (text for text, is_typed in typed.items() if is_typed):
            raise UsageError(f"'{option}' and '--doctor' exclude each other", f"leave out {option}")


SCORES = ScoreOptions()
