"""`modelscope summary`."""

from typing import Annotated

import typer

from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import make_run, read_options, set_up, tell


def summary(
    model: opt.ModelArg,
    depth: Annotated[
        int | None, typer.Option("--depth", min=0, help="Layers nested no deeper than this.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="PATTERN", help="Count these layers' parameters as not trainable."),
    ] = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    input_shape: opt.InputShapeOpt = None,
    batch: opt.BatchOpt = None,
    num_classes: opt.NumClassesOpt = None,
    checkpoint: opt.CheckpointOpt = None,
    strict: opt.StrictOpt = True,
    model_arg: opt.ModelArgsOpt = None,
    dtype: opt.DtypeOpt = "float32",
    seed: opt.SeedOpt = 0,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Print the layers of a model with their shapes, parameters and cost.

    Needs no weights and next to no memory: the model is built and run without data. Shapes and costs are
    those of one forward at the model's own input size; --input-shape and --batch change it.

    Examples:

      modelscope summary resnet34

      modelscope summary vit_b_16 --depth 3 --batch 8

      modelscope summary samples/tiny_resnet.py:TinyResNet --input-shape 1,3,96,96
    """
    options = locals()
    from modelscope_cli.commands.summary.table import summary_columns, summary_sheet
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    choose_columns(summary_columns(), columns)

    from modelscope_cli.analysis.summary.summarize import summarize

    summarized = summarize(
        request,
        given,
        layers=tuple(layer or ()),
        exclude=tuple(exclude or ()),
        freeze=tuple(freeze or ()),
        depth=depth,
    )
    tell(summarized.notes, summarized.warnings)
    run = make_run("summary", summarized.loaded, summarized.given, seed, summarized.warnings)
    record = summarized.record(run)
    emit(where, summary_sheet(record, columns), record.to_dict())
    if summarized.error is not None:
        raise summarized.error
