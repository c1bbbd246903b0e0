"""`modelscope prune`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.prune.options import CUT, CutOptions
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.output import emit


class Table(StrEnum):
    """Which of the tables is printed."""

    drift = "drift"
    layers = "layers"


@spread
def prune(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    layers: groups.LayerOptions = groups.LAYERS,
    cut: CutOptions = CUT,
    save_weights: Annotated[
        Path | None,
        typer.Option(
            "--save-weights",
            metavar="FILE",
            help="Write the weights with zeros in them as .safetensors, for --checkpoint. Zeros alone do not make "
            "the model smaller or faster.",
            rich_help_panel="Output",
        ),
    ] = None,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    inputs: groups.InputOptions = groups.INPUT,
    folder: groups.FolderOptions = groups.FOLDER,
    table: Annotated[
        Table, typer.Option("--table", help="Which table to print.", rich_help_panel="Output")
    ] = Table.drift,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Cut weights away, and print and draw how far the predictions drift.

    The masks are those of torch.nn.utils.prune, put in place by hooks while the model runs: its parameters and its
    file stay as they are. A --layer that is named means everything inside it. Biases and batch norms are left as
    they are.

    Examples:

      modelscope prune demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope prune demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --amount 0.5 --global --save-weights pruned.safetensors

      modelscope prune resnet18 demo/harbour.jpg --weights none --layer conv --by-channel --method l2
    """
    from modelscope_cli.commands.prune.table import prune_columns, prune_sheet

    where = output.begin()
    named, images = model.take("prune", first, images)
    asked = model.request(named), inputs.request(images, model.seed)
    where.view.check(prune_columns(table))
    cut.check(model.seed, bool(images))
    record = ms.prune(
        *asked,
        **said(layers),
        amount=cut.amount,
        method=cut.method,
        by_channel=cut.by_channel,
        global_=cut.is_global,
        sweep=cut.sweep,
        save_weights=save_weights,
        hook=hook or (),
        out=folder.choose("prune", named),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, prune_sheet(record, table), record)
