"""`modelscope stats`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli import interrupts
from modelscope_cli.records.stats import COLUMN_OF_FIGURE
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    Hook,
    ImagesArgument,
    InputOptions,
    LayerOptions,
    Mode,
    ModelArgument,
    ModelOptions,
)
from modelscope_cli.shell.output import emit, save_as, save_report
from modelscope_cli.shell.output_options import BlocksOut, OutputOptions, Resume
from modelscope_cli.shell.parameters import command


@command
def stats(
    first: ModelArgument = None,
    images: ImagesArgument = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save one figure of all the distributions (.png .svg .pdf)."),
    ] = None,
    hook: Hook = None,
    mode: Mode = "auto",
    out: BlocksOut = None,
    resume: Resume = False,
    *,
    on: ModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> None:
    """Print statistics of every layer's output, over many images.

    Only finite values count; NaN and infinite ones are counted separately. A dead channel is zero at every position
    of every image. Columns such as p50, p01 or p99.9 are quantiles, accurate to 0.4 %. In train mode, the batch
    norm whose batch statistics differ most from the running ones is shown (--json has all).

    Under torchrun, all processes share the blocks of --out, and the result is bit-identical; in train mode, and
    with --hook, one process does everything.

    Examples:

      modelscope stats resnet34 demo/harbour.jpg --weights none

      modelscope stats demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --layer type:ReLU --columns name,mean,p50,p99.9,zero,dead

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope stats resnet34 demo/harbour.jpg -w none --hook 'zero[3,7]@conv1' --hook print@fc

      torchrun --nproc-per-node 2 -m modelscope_cli stats resnet18 'demo/shapes/*/*.jpg' -w none --batch 8
    """
    from modelscope_cli.report.canvas import check_figure
    from modelscope_cli.report.stats.table import columns_of, stats_sheet

    where = show.begin(is_shared=True)
    model, files = on.choose(first, images)
    columns = columns_of(where.layout)
    if plot is not None:
        check_figure(plot, show.force)
    record = ms.stats(
        model,
        data.request(files, on.seed),
        layer=layers.layer or (),
        exclude=layers.exclude or (),
        hook=hook or (),
        mode=mode,
        columns=(*columns, *COLUMN_OF_FIGURE.values())
        if plot is not None and columns is not None
        else columns,
        out=out,
        resume=resume,
        share=True,
        force=show.force,
        progress=PROGRESS,
    )
    if plot is not None:
        save_as(record, plot)
    if out is not None:
        record = save_report(record, out, has_content=bool(interrupts.resumable))
    emit(where, stats_sheet(record, columns or ()), record)
