"""The options of `featuremaps` that say what is drawn, and how it looks."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.shell import completion
from modelscope_cli.shell.numbers import whole


class Scale(StrEnum):
    """Over what the colours span."""

    channel = "channel"
    layer = "layer"


@dataclass(frozen=True, slots=True)
class ChannelOptions:
    """Which channels of each output are drawn."""

    channels: Annotated[
        str,
        typer.Option(
            "--channels",
            metavar="LIST",
            help="These, by number: 3,7,10..20; one number is that channel, not how many.",
            show_default=False,
        ),
    ] = ""
    max_channels: Annotated[
        int,
        whole(
            "--max-channels",
            min=1,
            metavar="N",
            help="At most this many, evenly chosen, where they are not named.",
        ),
    ] = 64
    strongest: Annotated[
        bool, typer.Option("--strongest", help="Choose the channels with the largest mean |activation|.")
    ] = False


@dataclass(frozen=True, slots=True)
class LookOptions:
    """How they are drawn, and what is saved beside."""

    scale: Annotated[
        Scale, typer.Option("--scale", help="Colours span each channel's own range, or the layer's.")
    ] = Scale.channel
    cmap: Annotated[
        str,
        typer.Option(
            "--cmap",
            metavar="NAME",
            help="A colour map of matplotlib.",
            autocompletion=completion.one_of(*completion.COLOUR_MAPS),
        ),
    ] = "viridis"
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
    ] = None
    overlay: Annotated[
        bool,
        typer.Option("--overlay", help="Lay the maps over the gray image, as opaque as they are strong."),
    ] = False
    attention: Annotated[
        bool, typer.Option("--attention", help="Draw where each head of the attention in the layers looks.")
    ] = False
    top_images: Annotated[
        int,
        whole(
            "--top-images",
            min=0,
            metavar="N",
            help="Go through a folder, and show the N images that fire each channel most, in the middle and least.",
            show_default=False,
        ),
    ] = 0
    save_tensors: Annotated[
        Path | None,
        typer.Option("--save-tensors", metavar="FILE", help="Save the whole outputs as .safetensors."),
    ] = None


CHANNELS, LOOK = ChannelOptions(), LookOptions()
