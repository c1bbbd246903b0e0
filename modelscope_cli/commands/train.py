"""`modelscope train`."""

from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.records.check import is_failed
from modelscope_cli.records.naming import LONGEST_RUN
from modelscope_cli.shell import completion
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import FailOn, LearnerOptions, ModelArgument
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import Out, OutputOptions
from modelscope_cli.shell.parameters import command


@command
def train(
    first: ModelArgument = None,
    folder: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR",
            help="A folder with one subfolder of images per class. Without it, ten classes of drawn shapes.",
            show_default=False,
        ),
    ] = None,
    loaders: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py:NAME",
            rich_help_panel="Data",
            help="Train on a DataLoader of your own. NAME may also be a function that returns one, or (train, "
            "validation).",
        ),
    ] = None,
    pictures: Annotated[
        int, typer.Option(metavar="N", min=20, rich_help_panel="Data", help="How many shapes to draw.")
    ] = 2000,
    size: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=8,
            max=4096,
            rich_help_panel="Data",
            help="Width and height of each image, in pixels.",
        ),
    ] = 64,
    fail_on: FailOn = None,
    steps: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=LONGEST_RUN,
            rich_help_panel="Training",
            help="How many optimizer steps to make.",
        ),
    ] = 100,
    batch: Annotated[
        int,
        typer.Option(
            "--batch",
            "-b",
            metavar="N",
            min=1,
            rich_help_panel="Training",
            help="Images per step. A loader has its own batches.",
        ),
    ] = 32,
    optimizer: Annotated[
        Literal["sgd", "momentum", "nesterov", "adamw"],
        typer.Option(
            metavar="NAME",
            rich_help_panel="Training",
            help="The optimizer: sgd, momentum, nesterov (both 0.9), or adamw.",
        ),
    ] = "momentum",
    label_smoothing: Annotated[
        float,
        typer.Option(
            metavar="E",
            min=0,
            max=1,
            rich_help_panel="Training",
            help="Label smoothing of the cross-entropy.",
        ),
    ] = 0.0,
    weight_decay: Annotated[
        float,
        typer.Option(metavar="L", min=0, rich_help_panel="Training", help="Weight decay of the optimizer."),
    ] = 0.0,
    lr: Annotated[
        float,
        typer.Option(
            metavar="R", rich_help_panel="Training", help="The learning rate, or its peak; above 0."
        ),
    ] = 0.05,
    schedule: Annotated[
        Literal["constant", "one-cycle", "cosine"],
        typer.Option(metavar="NAME", rich_help_panel="Training", help="constant, one-cycle, or cosine."),
    ] = "constant",
    clip_norm: Annotated[
        float | None,
        typer.Option(
            metavar="V", rich_help_panel="Training", help="Scale all gradients to this norm; above 0."
        ),
    ] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE:CLASS",
            rich_help_panel="Training",
            help="Call the methods of your own class (repeatable). They are those of "
            "modelscope_cli.training.runner.Callback.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION=A,B",
            rich_help_panel="Training",
            help="Train once for each value (repeatable). Several give every combination. OPTION is init, "
            "norm-layer, activation, optimizer, schedule, lr, batch, label-smoothing, or weight-decay.",
        ),
    ] = None,
    init: Annotated[
        Literal["default", "kaiming-normal", "kaiming-uniform", "kaiming", "xavier", "lsuv"],
        typer.Option(
            metavar="NAME",
            rich_help_panel="Change the model",
            help="Default (the model's own), kaiming (kaiming-normal), kaiming-uniform, xavier, or lsuv.",
        ),
    ] = "default",
    activation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Change the model",
            help="Replace the ReLUs: leaky:SLOPE, or general:SLOPE:SUBTRACT:MAXIMUM for min(leaky_relu(x) - "
            "SUBTRACT, MAXIMUM). relu keeps them; leaky alone is leaky:0.1, and general is "
            "general:0.1:0.4.",
            autocompletion=completion.one_of("relu", "leaky", "general"),
        ),
    ] = "relu",
    norm_layer: Annotated[
        Literal["batch", "layer", "group", "instance", "running", "none"],
        typer.Option(
            metavar="NAME",
            rich_help_panel="Change the model",
            help="Replace batch norms: layer, group, instance, running, or none. batch keeps them.",
        ),
    ] = "batch",
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            rich_help_panel="Change the model",
            help="Do not train these layers (repeatable).",
        ),
    ] = None,
    train_only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            rich_help_panel="Change the model",
            help="Train only these layers (repeatable).",
        ),
    ] = None,
    out: Out = None,
    every: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            min=1,
            max=LONGEST_RUN,
            help="Record every K-th step, instead of about 200 in all.",
        ),
    ] = None,
    *,
    on: LearnerOptions,
    show: OutputOptions,
) -> int:
    """Train a classifier for a few steps and show what happens inside it.

    Prints every layer at the first and at the last step or, with --vary, one row per variant; all variants see the
    same images in the same order. A tenth of the images is used for validation, after each epoch.

    Examples:

      modelscope train demo/tiny_resnet.py:TinyResNet --size 48 --steps 60

      modelscope train demo/tiny_resnet.py:TinyResNet --vary init=default,lsuv --vary norm-layer=batch,none
        --steps 40

      modelscope train demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --train-only head --schedule
        one-cycle --steps 60
    """

    from modelscope_cli.output_files import free_folder
    from modelscope_cli.report.train.table import train_columns, train_sheet

    where = show.begin()
    model, images = on.learner(first, folder)
    where.layout.check(train_columns(bool(vary)))
    record = ms.train(
        model,
        images,
        steps=steps,
        batch=batch,
        lr=lr,
        schedule=schedule,
        clip_norm=clip_norm,
        optimizer=optimizer,
        label_smoothing=label_smoothing,
        weight_decay=weight_decay,
        vary=vary or (),
        callback=callback or (),
        init=init,
        activation=activation,
        norm_layer=norm_layer,
        freeze=freeze or (),
        train_only=train_only or (),
        loaders=loaders,
        pictures=pictures,
        size=size,
        every=every,
        out=out or free_folder("train", model.model),
        force=show.force,
        progress=PROGRESS,
    )
    emit(where, train_sheet(record), record)
    return int(is_failed(record.findings, fail_on))
