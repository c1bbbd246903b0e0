"""`modelscope lrfind`."""

from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.shell import completion
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import LearnerOptions, ModelArgument
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions
from modelscope_cli.shell.parameters import command


@command
def lrfind(
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
    low: Annotated[
        float, typer.Option("--from", metavar="R", rich_help_panel="Sweep", help="The first learning rate.")
    ] = 1e-05,
    high: Annotated[
        float, typer.Option("--to", metavar="R", rich_help_panel="Sweep", help="The last learning rate.")
    ] = 10.0,
    steps: Annotated[
        int, typer.Option(metavar="N", min=3, rich_help_panel="Sweep", help="How many steps to make.")
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
    *,
    on: LearnerOptions,
    show: OutputOptions,
) -> None:
    """Sweep the learning rate while training, suggest one, and restore everything.

    Weights, buffers, optimizer and random state are hashed before and after, to verify that they are restored.

    Examples:

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48

      modelscope lrfind demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --batch 8 --optimizer adamw --to
        0.1

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48 --from 0.001 --to 0.5
    """

    from modelscope_cli.report.lrfind.table import COLUMNS, lrfind_sheet

    where = show.begin()
    model, images = on.learner(first, folder)
    where.layout.check(COLUMNS)
    out = show.folder(out, model.model)
    record = ms.lrfind(
        model,
        images,
        low=low,
        high=high,
        steps=steps,
        batch=batch,
        optimizer=optimizer,
        label_smoothing=label_smoothing,
        weight_decay=weight_decay,
        init=init,
        activation=activation,
        norm_layer=norm_layer,
        freeze=freeze or (),
        train_only=train_only or (),
        loaders=loaders,
        pictures=pictures,
        size=size,
        progress=PROGRESS,
    )
    record = save_report(record, out)
    emit(where, lrfind_sheet(record), record)
