"""The options of `modelscope predict`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.ranks import find_ranks
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.numbers import real
from modelscope_cli.shell.option_groups import BlockOptions

TOP = 5
_TRUTH = "Against the truth"


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
            help="Names of the classes, instead of those of the weights: one per line, a JSON list, or JSON "
            "{index: label}.",
        ),
    ] = None
    scores: Annotated[
        Scores,
        typer.Option(
            "--scores",
            help="softmax: exactly one class per image, the scores add up to 1. sigmoid: several classes or "
            "none, each scored on its own. auto: sigmoid if the model states it, else softmax.",
        ),
    ] = Scores.auto
    threshold: Annotated[
        float | None,
        real(
            "--threshold",
            min=0.0,
            max=1.0,
            metavar="P",
            help="With sigmoid, the lowest score at which a class is on; 0.5 by default.",
        ),
    ] = None
    temperature: Annotated[
        float,
        real(
            "--temperature", metavar="T", help="Divide the logits by this; above 1 makes the model less sure."
        ),
    ] = 1.0


class Table(StrEnum):
    """Which of the tables of `--truth` is printed."""

    measures = "measures"
    classes = "classes"
    confusions = "confusions"
    calibration = "calibration"
    worst = "worst"


@dataclass(frozen=True, slots=True)
class TruthOptions:
    """What the images show, and what is made of it."""

    truth: Annotated[
        str | None,
        typer.Option(
            "--truth",
            metavar="folders|FILE",
            help="Compare the predictions with the truth. folders: each folder is named after the class of its "
            "images, a label or an index. FILE: lines of image,class or JSON {image: class}; with "
            "several labels image,class,class; for pixels image,mask.png.",
            rich_help_panel=_TRUTH,
        ),
    ] = None
    table: Annotated[
        Table | None,
        typer.Option(
            "--table",
            help="Which table of --truth to print; measures by default.",
            show_default=False,
            rich_help_panel=_TRUTH,
        ),
    ] = None

    def check(self, top: int) -> None:
        """Refuse what means nothing with or without `--truth`."""
        if self.truth is None:
            for option in self.typed():
                raise UsageError(f"'{option}' is for '--truth'", f"--truth folders {option}")
        elif top != TOP:
            message = f"'--top {top}' and '--truth' exclude each other: no image has a row of its own"
            raise UsageError(message, f"leave out --top {top}")

    def typed(self) -> list[str]:
        """Return the options that were given."""
        typed = {"--truth": self.truth, "--table": self.table}
        return [f"{option} {value}" for option, value in typed.items() if value is not None]


def refuse_idle(
    given: ScoreOptions,
    against: TruthOptions,
    blocks: BlockOptions,
    top: int,
    hook: Sequence[str] | None,
) -> None:
    """Refuse what `--doctor` has no use for, several processes too."""
    typed = {
        f"--top {top}": top != TOP,
        f"--scores {given.scores}": given.scores is not Scores.auto,
        f"--threshold {given.threshold}": given.threshold is not None,
        f"--temperature {given.temperature:g}": given.temperature != 1,
        f"--hook {(hook or ('',))[0]}": bool(hook),
        f"--out {blocks.out}": blocks.out is not None,
        "--resume": blocks.resume,
        "torchrun": find_ranks().world > 1,
        **dict.fromkeys(against.typed(), True),
    }
    for option in (text for text, is_typed in typed.items() if is_typed):
        raise UsageError(f"'{option}' and '--doctor' exclude each other", f"leave out {option}")


@dataclass(frozen=True, slots=True)
class PredictOutputOptions(groups.OutputOptions):
    """How the result is shown; `--top` is how many classes an image has here."""

    top: None = field(init=False, default=None)


SCORES, TRUTH, OUTPUT = ScoreOptions(), TruthOptions(), PredictOutputOptions()
