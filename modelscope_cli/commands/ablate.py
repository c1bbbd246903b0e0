"""`modelscope ablate`."""

from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    Hook,
    ImagesArgument,
    InputOptions,
    Labels,
    LayerOptions,
    ModelArgument,
    ModelOptions,
    OutputKind,
)
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions, Save
from modelscope_cli.shell.parameters import command


@command
def ablate(
    first: ModelArgument = None,
    images: ImagesArgument = None,
    by_channel: Annotated[
        bool, typer.Option("--by-channel", help="Ablate the channels of each --layer one by one.")
    ] = False,
    method: Annotated[
        Literal["zero", "mean", "shuffle"],
        typer.Option(
            help="Replace the output by zeros, by the mean of each channel over its positions, or by the same "
            "values at shuffled positions (seeded). If a channel has a single value, channels are averaged or "
            "shuffled instead."
        ),
    ] = "zero",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help="The output value to follow: a class index or label, predicted, or mask:CLASS.",
        ),
    ] = "predicted",
    hook: Hook = None,
    output_kind: OutputKind = "auto",
    labels: Labels = None,
    out: Out = None,
    save: Save = True,
    *,
    on: ModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> None:
    """Ablate layers one by one and measure how the predictions change.

    A forward hook replaces the output of a layer, and only the layers after it are computed again.
    Rows are sorted by the change of the prediction (KL divergence); over several images, all numbers are means.
    For folders named after classes, the accuracy without each layer is printed.

    Examples:

      modelscope ablate demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope ablate demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors -l
        block3.conv2 --by-channel
    """
    from modelscope_cli.report.ablate.table import ablate_columns, ablate_sheet

    where = show.begin()
    model, files = on.choose(first, images)
    where.layout.check(ablate_columns())
    folder = show.folder(out, model.model, save=save)
    record = ms.ablate(
        model,
        data.request(files, on.seed),
        layer=layers.layer or (),
        exclude=layers.exclude or (),
        by_channel=by_channel,
        method=method,
        target=target,
        hook=hook or (),
        output_kind=output_kind,
        labels=labels,
        progress=PROGRESS,
    )
    record = save_report(record, folder)
    emit(where, ablate_sheet(record), record)
