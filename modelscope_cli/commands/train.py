"""`modelscope train`."""

from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.records.findings import is_failed
from modelscope_cli.records.naming import LONGEST_RUN
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    ClassesArgument,
    FailOn,
    LearnerOptions,
    ModelArgument,
    TrainingOptions,
)
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import Out, OutputOptions
from modelscope_cli.shell.parameters import command


@command
def train(
    first: ModelArgument = None,
    folder: ClassesArgument = None,
    fail_on: FailOn = None,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=LONGEST_RUN,
            rich_help_panel="Training",
            help="How many optimizer steps to take.",
        ),
    ] = 100,
    lr: Annotated[
        float,
        typer.Option(
            metavar="R", rich_help_panel="Training", help="The learning rate, or its peak in a schedule."
        ),
    ] = 0.05,
    schedule: Annotated[
        Literal["constant", "one-cycle", "cosine"],
        typer.Option(metavar="NAME", rich_help_panel="Training", help="constant, one-cycle, or cosine."),
    ] = "constant",
    clip_norm: Annotated[
        float | None,
        typer.Option(
            metavar="V", rich_help_panel="Training", help="Scale all gradients down to this norm (above 0)."
        ),
    ] = None,
    out: Out = None,
    every: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=LONGEST_RUN,
            help="Record every K-th step instead of those that `watch` records.",
        ),
    ] = None,
    *,
    how: TrainingOptions,
    on: LearnerOptions,
    show: OutputOptions,
) -> int:
    """Train a classifier for a few steps and show what happens inside.

    The table compares every layer at the first and at the last step. A fifth of each class is held out for
    validation after each epoch.

    Examples:

      modelscope train demo/tiny_resnet.py:TinyResNet --size 48 --steps 60

      modelscope train demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --train-only head --schedule
        one-cycle --steps 60
    """
    from modelscope_cli.output_files import free_folder
    from modelscope_cli.report.train.table import LAYER_COLUMNS, train_sheet

    where = show.begin()
    model, images = on.learner(first, folder)
    where.layout.check(LAYER_COLUMNS)
    record = ms.train(
        model,
        images,
        **how.keywords(),
        steps=steps,
        lr=lr,
        schedule=schedule,
        clip_norm=clip_norm,
        every=every,
        out=out or free_folder("train", model.model),
        force=show.force,
        progress=PROGRESS,
    )
    emit(where, train_sheet(record), record)
    return int(is_failed(record.findings, fail_on))
