"""The options that only `grads` has, in groups."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.shell import completion
from modelscope_cli.shell.numbers import real
from modelscope_cli.shell.options import OutDirOpt, SaveOpt

_LOSS, _CLIP, _TRAIN = "Loss", "Clipping", "What is trained"


class Table(StrEnum):
    """Which of the tables is printed."""

    parameters = "parameters"
    activations = "activations"
    batch_norm = "batch-norm"


@dataclass(frozen=True, slots=True)
class LossOptions:
    """Which scalar is differentiated."""

    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="Which loss: auto, cross-entropy, nll, bce, mse, mean, logit, or FILE.py:fn. auto takes what fits "
            "the output; bce is for several labels or none; yours is called as fn(output) or fn(output, target).",
            autocompletion=completion.losses,
            rich_help_panel=_LOSS,
        ),
    ] = "auto"
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="A class: its index, its label, or predicted. Or a number of the output instead of a loss: box:N, "
            "mask:CLASS, logit:PATH[I,J], similar:FILE.",
            rich_help_panel=_LOSS,
        ),
    ] = "predicted"
    label_smoothing: Annotated[
        float,
        real(
            "--label-smoothing",
            metavar="E",
            help="Label smoothing of the cross-entropy.",
            rich_help_panel=_LOSS,
        ),
    ] = 0.0
    weight_decay: Annotated[
        float,
        real(
            "--weight-decay",
            metavar="L",
            help="Add L/2 |w|^2 to the loss. Its share of every gradient is shown.",
            rich_help_panel=_LOSS,
        ),
    ] = 0.0


@dataclass(frozen=True, slots=True)
class ClipOptions:
    """How gradients are limited."""

    clip: Annotated[
        float | None,
        real(
            "--clip",
            metavar="V",
            help="Clamp the gradients of the parameters to [-V, V].",
            rich_help_panel=_CLIP,
        ),
    ] = None
    clip_norm: Annotated[
        float | None,
        real(
            "--clip-norm", metavar="V", help="Scale all gradients down to this norm.", rich_help_panel=_CLIP
        ),
    ] = None
    clip_activations: Annotated[
        float | None,
        real(
            "--clip-activations",
            metavar="V",
            help="Clamp what flows back through --layer. All layers are shown.",
            rich_help_panel=_CLIP,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class TrainedOptions:
    """Which parameters are trained."""

    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            metavar="PATTERN",
            help="Do not train these layers (repeatable).",
            rich_help_panel=_TRAIN,
        ),
    ] = None
    train_only: Annotated[
        list[str] | None,
        typer.Option(
            "--train-only",
            metavar="PATTERN",
            help="Train nothing but these layers (repeatable).",
            rich_help_panel=_TRAIN,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """The folder with the report, and the table that is printed."""

    out: OutDirOpt = None
    save: SaveOpt = True
    table: Annotated[
        Table, typer.Option("--table", help="Which table to print.", rich_help_panel="Output")
    ] = Table.parameters


LOSS, CLIP, TRAINED, REPORT = LossOptions(), ClipOptions(), TrainedOptions(), ReportOptions()
