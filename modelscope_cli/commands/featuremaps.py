"""`modelscope featuremaps`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.records.featuremaps import FeatureMapsRecord
from modelscope_cli.records.naming import counted
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    Hook,
    ImagesArgument,
    InputOptions,
    LayerOptions,
    ModelArgument,
    ModelOptions,
)
from modelscope_cli.shell.output import check_tensors_file, emit, save_as, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions
from modelscope_cli.shell.parameters import command


@command
def featuremaps(
    first: ModelArgument = None,
    images: ImagesArgument = None,
    channels: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Only the channels with these indices: 3,7,10..20. A single number is an index, not a count.",
            show_default=False,
        ),
    ] = None,
    max_channels: Annotated[
        int, typer.Option(metavar="N", min=1, help="At most this many channels, evenly spaced.")
    ] = 64,
    scale: Annotated[
        Literal["channel", "layer"], typer.Option(help="Scale the colours by channel or by layer.")
    ] = "channel",
    overlay: Annotated[
        bool,
        typer.Option("--overlay", help="Draw the maps over the gray image; stronger values are more opaque."),
    ] = False,
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="Draw each attention head of the layers: the attention from the class token to each position "
            "or, without a class token, the mean attention that each position receives.",
        ),
    ] = False,
    filters: Annotated[
        bool,
        typer.Option(
            "--filters",
            help="Draw the filters of the convolutions, in colour if they read an image, else at their strongest "
            "input channel.",
        ),
    ] = False,
    save_tensors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the outputs as .safetensors.")
    ] = None,
    hook: Hook = None,
    out: Out = None,
    *,
    on: ModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> None:
    """Save the feature maps of an image as one grid per layer.

    A contact sheet shows all of them. The forward pass stops after the last selected layer. Gray cells are constant
    channels. Tokens and windows are drawn at their place in the image; extra tokens, such as class tokens, are left
    out and listed. Without --layer, a deep network gets one grid per stage: the last output at each map size.

    Examples:

      modelscope featuremaps resnet34 demo/harbour.jpg --weights none --layer conv@1..4

      modelscope featuremaps demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors -l
        block3 --max-channels 16 --overlay

      modelscope featuremaps resnet34 demo/harbour.jpg --weights none -l layer1.0.conv1 --channels 3,7,10..20

      modelscope featuremaps vit_b_32 demo/harbour.jpg --weights none -l 'encoder.layers.*.mlp'

      modelscope featuremaps vit_b_32 demo/harbour.jpg --weights none --attention --overlay

      modelscope featuremaps demo/tiny_resnet.py:TinyResNet -c demo/tiny_resnet.safetensors --filters
    """
    from modelscope_cli.report.featuremaps.table import featuremaps_columns, featuremaps_sheet

    where = show.begin()
    model, files = on.choose(first, images)
    inputs = data.request(files, on.seed)
    where.layout.check(featuremaps_columns(True))
    inputs.check_one()
    if save_tensors is not None:
        check_tensors_file(save_tensors)
    folder = show.folder(out, model.model)
    record = ms.featuremaps(
        model,
        inputs,
        layer=layers.layer or (),
        exclude=layers.exclude or (),
        channels=channels or (),
        max_channels=max_channels,
        scale=scale,
        overlay=overlay,
        attention=attention,
        filters=filters,
        hook=hook or (),
        progress=PROGRESS,
    )
    if save_tensors is not None:
        record = save_as(record, save_tensors)
    record = save_report(record, folder, content=_content)
    emit(where, featuremaps_sheet(record), record)


def _content(record: FeatureMapsRecord) -> str:
    """Return how many images of maps a saved result has, and the file that shows all of them."""
    return f"{counted(sum(row.file is not None for row in record.maps), 'grid')}, {record.contact_sheet}"
