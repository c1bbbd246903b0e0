"""`modelscope stats`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg
from modelscope_cli.shell.numbers import real
from modelscope_cli.shell.output import emit


class Table(StrEnum):
    """Which of the tables is printed."""

    layers = "layers"
    batch_norm = "batch-norm"
    attention = "attention"
    channels = "channels"


@spread
def stats(
    first: FirstArg = None,
    images: opt.ImagesArg = None,
    layers: groups.LayerOptions = groups.LAYERS,
    near_zero: Annotated[
        float,
        real("--near-zero", min=0.0, metavar="T", help="|x| below this counts as near zero."),
    ] = NEAR_ZERO,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Save one figure of all the distributions (.png .svg .pdf)."
        ),
    ] = None,
    correlation: Annotated[
        bool,
        typer.Option(
            "--correlation", help="Correlate the channels of each --layer; one figure for each, in --out."
        ),
    ] = False,
    hook: opt.HookOpt = None,
    mode: opt.ModeOpt = opt.Mode.auto,
    model: groups.ModelOptions = groups.MODEL,
    inputs: groups.InputOptions = groups.INPUT,
    blocks: groups.BlockOptions = groups.BLOCKS,
    table: Annotated[
        Table,
        typer.Option(
            "--table",
            help="Which table to print; channels lists the dead ones, batch-norm needs --mode train.",
            rich_help_panel="Output",
        ),
    ] = Table.layers,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Print statistics of every layer's output, over any number of images.

    Only finite values count; NaN and infinite ones are counted separately. A dead channel is zero at every position
    of every image. A column such as p50, p01 or p99.9 is an exact quantile, a value of the data; for it, and for
    mad with several batches, the images are read twice. In train mode the drift of every batch norm is shown: its
    batch's statistics beside the running ones. The table attention has the entropy of each head's weights.

    Image files are cut into blocks of --batch. Under torchrun all processes work on them, and --out keeps them: the
    bits are the same for any number of processes, also after a break. In train mode, with --correlation, --hook or
    the table attention, one process does all of it in one go.

    Examples:

      modelscope stats resnet34 demo/harbour.jpg --weights none

      modelscope stats demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --layer type:ReLU --columns name,mean,p50,p99.9,zero,dead

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope stats vit_b_32 demo/harbour.jpg -w none --table attention

      modelscope stats resnet34 demo/harbour.jpg -w none --hook 'zero[3,7]@conv1' --hook print@fc

      torchrun --nproc-per-node 2 -m modelscope_cli stats resnet18 'demo/shapes/*/*.jpg' -w none --batch 8
    """
    from modelscope_cli.commands.stats.table import columns_of, stats_sheet
    from modelscope_cli.report.shared_tables import check_drift

    where = output.begin(is_shared=True)
    named, images = model.take("stats", first, images)
    asked = model.request(named), inputs.request(images, model.seed)
    if table == Table.batch_norm:
        check_drift(mode == opt.Mode.train)
    columns = columns_of(table, where.view)
    record = ms.stats(
        *asked,
        **said(layers),
        near_zero=near_zero,
        plot=plot,
        correlation=correlation,
        attention=table == Table.attention,
        hook=hook or (),
        mode=mode,
        columns=columns,
        out=blocks.out or (groups.FolderOptions().choose("stats", named) if correlation else None),
        resume=blocks.resume,
        share=True,
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, stats_sheet(record, table, columns or ()), record)
