"""The options of `train` that say how it learns."""

from dataclasses import dataclass, field
from typing import Annotated

import typer

from modelscope_cli.records.bounds import LONGEST_RUN
from modelscope_cli.shell import completion
from modelscope_cli.shell import options as opt
from modelscope_cli.shell import training as shared
from modelscope_cli.shell.numbers import real, whole

_HOW = shared.HOW


@dataclass(frozen=True, slots=True)
class HowOptions:
    """How the model learns, and for how long."""

    steps: Annotated[
        int,
        whole(
            "--steps",
            most=LONGEST_RUN,
            metavar="N",
            min=1,
            help="How often the weights are changed.",
            rich_help_panel=_HOW,
        ),
    ] = 100
    batch: shared.BatchOpt = 32
    optimizer: shared.OptimizerOpt = "momentum"
    lr: Annotated[
        float,
        real("--lr", metavar="R", help="The learning rate, or its peak.", rich_help_panel=_HOW),
    ] = 0.05
    schedule: Annotated[
        str,
        typer.Option(
            "--schedule",
            metavar="NAME",
            help="constant, one-cycle, or cosine.",
            autocompletion=completion.of_training("schedule"),
            rich_help_panel=_HOW,
        ),
    ] = "constant"
    label_smoothing: shared.SmoothingOpt = 0.0
    weight_decay: shared.DecayOpt = 0.0
    clip_norm: Annotated[
        float | None,
        real("--clip-norm", metavar="V", help="Scale all gradients to this norm.", rich_help_panel=_HOW),
    ] = None
    patience: Annotated[
        int | None,
        whole(
            "--patience",
            most=LONGEST_RUN,
            metavar="N",
            min=1,
            help="Stop after N epochs without a lower validation loss.",
            rich_help_panel=_HOW,
        ),
    ] = None
    callback: Annotated[
        list[str] | None,
        typer.Option(
            "--callback",
            metavar="FILE:CLASS",
            help="Tell a class of yours what happens (repeatable). Its methods are those of "
            "modelscope_cli.training.runner.Callback.",
            rich_help_panel=_HOW,
        ),
    ] = None
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="OPTION=A,B",
            help="Train once for each value (repeatable). Several give every combination. OPTION is init, "
            "norm-layer, activation, optimizer, schedule, lr, batch, label-smoothing, or weight-decay.",
            rich_help_panel=_HOW,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class OwnLearnerOptions(shared.LearnerOptions):
    """The model that learns; how many classes it has, the images say."""

    num_classes: opt.NumClassesOpt = field(default=None, init=False)


HOW, LEARNER = HowOptions(), OwnLearnerOptions()
