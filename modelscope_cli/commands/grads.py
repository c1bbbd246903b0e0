"""`modelscope grads`."""

from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    Freeze,
    Hook,
    ImagesArgument,
    InputOptions,
    Labels,
    LayerOptions,
    Mode,
    ModelArgument,
    ModelOptions,
    OutputKind,
    TrainOnly,
)
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions, Save
from modelscope_cli.shell.parameters import command


@command
def grads(
    first: ModelArgument = None,
    images: ImagesArgument = None,
    loss: Annotated[
        str,
        typer.Option(
            metavar="LOSS",
            rich_help_panel="Loss",
            help="The loss: auto, cross-entropy, nll, bce, mse, mean, logit, or FILE.py:fn. auto chooses by the "
            "output; bce allows several labels or none; your function is called as fn(output) or fn(output, "
            "target).",
        ),
    ] = "auto",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            rich_help_panel="Loss",
            help="A class: index, label, or predicted. auto: the class named like each image's folder, else "
            "predicted. box:N or mask:CLASS: an output value instead of a loss.",
        ),
    ] = "auto",
    clip: Annotated[
        float | None,
        typer.Option(
            metavar="V",
            rich_help_panel="Clipping",
            help="Clamp the gradients of the parameters to [-V, V] (V above 0).",
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            metavar="V", rich_help_panel="Clipping", help="Scale all gradients down to this norm (above 0)."
        ),
    ] = None,
    freeze: Freeze = None,
    train_only: TrainOnly = None,
    hook: Hook = None,
    mode: Mode = "auto",
    output_kind: OutputKind = "auto",
    labels: Labels = None,
    table: Annotated[
        Literal["parameters", "activations"], typer.Option(help="Which table to print.")
    ] = "parameters",
    out: Out = None,
    save: Save = True,
    *,
    on: ModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> None:
    """Run a forward and a backward pass and print the gradients.

    Each image is a pass of its own unless --batch sets another size; for several passes, the mean gradient and its
    noise are shown. Gradients are computed, inspected and discarded; nothing is trained.

    Examples:

      modelscope grads resnet34 demo/harbour.jpg --weights none --clip 1.0

      modelscope grads demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors -t star

      modelscope grads resnet18 --weights none --train-only fc --num-classes 10 --mode train --no-save

      modelscope grads resnet34 demo/harbour.jpg -w none --hook 'grad:clamp=-1,1@conv' --no-save
    """
    from modelscope_cli.report.grads.table import grads_columns, grads_sheet

    where = show.begin()
    model, files = on.choose(first, images)
    where.layout.check(grads_columns(table))
    folder = show.folder(out, model.model, save=save)
    record = ms.grads(
        model,
        data.request(files, on.seed),
        layer=layers.layer or (),
        exclude=layers.exclude or (),
        loss=loss,
        target=target,
        clip=clip,
        clip_norm=clip_norm,
        freeze=freeze or (),
        train_only=train_only or (),
        hook=hook or (),
        mode=mode,
        output_kind=output_kind,
        labels=labels,
        progress=PROGRESS,
    )
    record = save_report(record, folder)
    emit(where, grads_sheet(record, table), record)
