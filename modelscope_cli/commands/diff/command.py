"""`modelscope diff`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.diff import options as own
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.numbers import real
from modelscope_cli.shell.output import emit

DIFFERENT = 1


@spread
def diff(
    a: Annotated[
        str | None,
        typer.Argument(metavar="A", help="A model or a checkpoint file.", show_default=False),
    ] = None,
    b: Annotated[
        str | None,
        typer.Argument(metavar="B", help="Another one; without it, A under the settings of --b-..."),
    ] = None,
    images: opt.ImagesArg = None,
    tolerance: Annotated[
        float | None,
        real(
            "--tolerance",
            "-t",
            metavar="T",
            help="The largest relative L2 that does not count as a difference.",
            show_default="0 for tensors; for activations what torch.testing.assert_close allows the coarser "
            "dtype: 1.3e-6, 1e-3 float16, 1.6e-2 bfloat16",
        ),
    ] = None,
    layers: groups.LayerOptions = groups.LAYERS,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the differences along the depth (.png .svg .pdf)."),
    ] = None,
    hook: opt.HookOpt = None,
    mode: opt.ModeOpt = opt.Mode.auto,
    both: own.BothOptions = own.BOTH,
    b_options: own.BOptions = own.B,
    inputs: groups.InputOptions = groups.INPUT,
    output: own.DiffOutputOptions = own.OUTPUT,
) -> int:
    """Compare two checkpoints, two models, or one model under two settings; exit with 1 if they differ.

    Without an input, the weights are compared: what was added, removed, renamed, reshaped, retyped, changed. With
    images or --input-shape, every layer's output is, call by call, and the first that diverges is named: both
    models run side by side, on the input as A expects it, with one activation of each in memory. Two results that
    were kept, pages or folders, are compared number by number.

    Examples:

      modelscope diff demo/tiny_resnet.safetensors demo/sick.safetensors

      modelscope diff demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --b-dtype
        bfloat16

      modelscope diff resnet18 resnet34 --weights none --input-shape 1,3,224,224 --plot depth.png
    """
    from modelscope_cli.commands.diff.table import diff_columns, diff_sheet

    where = output.begin()
    where.view.check(diff_columns())
    a, b, images = both.take(a, b, images)
    record = ms.diff(
        both.typed(a),
        b,
        inputs.request(images, both.seed),
        tolerance=tolerance,
        **said(layers, b_options),
        plot=plot,
        hook=hook or (),
        mode=mode,
        model=both.model,
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, diff_sheet(record, show_all=output.all), record)
    return 0 if record.is_same else DIFFERENT
