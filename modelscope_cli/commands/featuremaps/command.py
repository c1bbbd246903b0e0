"""`modelscope featuremaps`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import completion
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import emit


class Scale(StrEnum):
    """Over what the colours span."""

    channel = "channel"
    layer = "layer"


@spread
def featuremaps(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    layers: groups.LayerOptions = groups.LAYERS,
    max_channels: Annotated[
        int, whole("--max-channels", min=1, metavar="N", help="At most this many, evenly chosen.")
    ] = 64,
    strongest: Annotated[
        bool, typer.Option("--strongest", help="Choose the channels with the largest mean |activation|.")
    ] = False,
    scale: Annotated[
        Scale, typer.Option("--scale", help="Colours span each channel's own range, or the layer's.")
    ] = Scale.channel,
    cmap: Annotated[
        str,
        typer.Option(
            "--cmap",
            metavar="NAME",
            help="A colour map of matplotlib.",
            autocompletion=completion.one_of(*completion.COLOUR_MAPS),
        ),
    ] = "viridis",
    cell: Annotated[
        int | None,
        whole(
            "--cell",
            min=1,
            max=2048,
            metavar="PIXELS",
            help="Long side of a map.",
            show_default="at least 96",
        ),
    ] = None,
    overlay: Annotated[bool, typer.Option("--overlay", help="Blend the maps over the image.")] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="Draw where each head of the attention in the layers looks.")
    ] = False,
    save_tensors: Annotated[
        Path | None,
        typer.Option("--save-tensors", metavar="FILE", help="Save the whole outputs as .safetensors."),
    ] = None,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    input_shape: opt.InputShapeOpt = None,
    input: opt.NamedInputsOpt = None,
    prepared: groups.ImageOptions = groups.IMAGES,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Save what the layers see in an image: a grid for each layer, and a contact sheet.

    The forward stops after the last layer that was asked for. Gray cells are channels of a single value. Tokens and
    windows are laid where they lie in the image; what is left out, such as class tokens, is said.

    Examples:

      modelscope featuremaps resnet34 demo/harbour.jpg --weights none --layer conv@1..4

      modelscope featuremaps demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors -l
        block3 --strongest --max-channels 16 --overlay

      modelscope featuremaps vit_b_32 demo/harbour.jpg --weights none -l 'encoder.layers.*.mlp' --cmap magma

      modelscope featuremaps vit_b_32 demo/harbour.jpg --weights none --attention --overlay
    """
    from modelscope_cli.commands.featuremaps.table import featuremaps_columns, featuremaps_sheet
    from modelscope_cli.report.palette import make_palette
    from modelscope_cli.report.sheet import choose_columns

    where = output.begin()
    named, images = model.take("featuremaps", first, images)
    asked = model.request(named), prepared.request(images, model.seed, input_shape, named=input)
    choose_columns(featuremaps_columns(True), output.columns)
    make_palette(cmap)
    asked[1].check_one("featuremaps")
    record = ms.featuremaps(
        *asked,
        **said(layers),
        max_channels=max_channels,
        strongest=strongest,
        scale=scale,
        cmap=cmap,
        cell=cell,
        overlay=overlay,
        attention=attention,
        save_tensors=save_tensors,
        hook=hook or (),
        out=folder.choose("featuremaps", named),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, featuremaps_sheet(record, output.columns), record.to_dict())
