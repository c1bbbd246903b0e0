"""`modelscope ablate`."""

from enum import StrEnum
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.output import emit


class Method(StrEnum):
    """What stands in for what is taken out."""

    zero = "zero"
    mean = "mean"
    shuffle = "shuffle"


@spread
def ablate(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    layers: groups.LayerOptions = groups.LAYERS,
    by_channel: Annotated[
        bool, typer.Option("--by-channel", help="Take out the channels of each --layer one by one.")
    ] = False,
    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="What replaces the output: zeros; each channel's mean over its positions; or the same values at "
            "shuffled positions (seeded).",
        ),
    ] = Method.zero,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            help=opt.TARGET_HELP,
        ),
    ] = "predicted",
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    inputs: groups.InputOptions = groups.INPUT,
    folder: groups.FolderOptions = groups.FOLDER,
    save: opt.SaveOpt = True,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Take out the layers of a model one by one, and say which of them carry the decision.

    A forward hook replaces a layer's output; the layers after it are computed again, those before it are not.
    Sorted by how far the prediction moves (KL divergence); over several images all figures are means.

    Examples:

      modelscope ablate demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope ablate demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors -l
        block3.conv2 --by-channel

      modelscope ablate demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --method shuffle --target star --no-save
    """
    from modelscope_cli.commands.ablate.table import ablate_columns, ablate_sheet

    where = output.begin()
    named, images = model.take("ablate", first, images)
    asked = model.request(named), inputs.request(images, model.seed)
    where.view.check(ablate_columns())
    output.check_saving(save, folder.out)
    record = ms.ablate(
        *asked,
        **said(layers),
        by_channel=by_channel,
        method=method,
        target=target,
        hook=hook or (),
        out=folder.choose("ablate", named) if save else None,
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, ablate_sheet(record), record)
