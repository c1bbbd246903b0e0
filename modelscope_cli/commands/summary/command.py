"""`modelscope summary`."""

from typing import Annotated, cast

import typer

import modelscope_cli as ms
from modelscope_cli.commands.summary.options import BUILT, DRAWN, RUN, Built, Drawn, Run
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.records.progress import Progress
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import ModelArg, names_model, take_model
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import emit


@spread
def summary(
    first: ModelArg = None,
    images: opt.ImagesArg = None,
    depth: Annotated[
        int | None, whole("--depth", min=0, metavar="N", help="Layers nested no deeper than this.")
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option("--freeze", metavar="PATTERN", help="Count these layers' parameters as not trainable."),
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Build the model, even if its summary was kept by an earlier run."),
    ] = False,
    drawn: Drawn = DRAWN,
    layers: groups.LayerOptions = groups.LAYERS,
    built: Built = BUILT,
    inputs: Run = RUN,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Print the layers of a model with their shapes, parameters and cost.

    Needs no weights and almost no memory: the model is built and run without data. Shapes and costs are
    those of one forward at the model's own input size; --input-shape and --batch change it. The summary of a
    model of torchvision is kept in the user's cache, for the same versions and options.

    The columns time, zero and gradient are measured, where they are asked for: the model is run with values then,
    by default with random weights (--weights).

    Examples:

      modelscope summary resnet34

      modelscope summary vit_b_16 --depth 3 --batch 8

      modelscope summary demo/tiny_resnet.py:TinyResNet --input-shape 1,3,96,96

      modelscope summary resnet18 --columns name,type,macs,time --sort time

      modelscope summary resnet18 --graph resnet18.svg --color params
    """
    from modelscope_cli.commands.summary.kept import Told, kept_for
    from modelscope_cli.commands.summary.table import measured_for, summary_sheet

    where = output.begin()
    is_model = names_model if built.model else lambda _: True
    model, images = take_model("summary", first, images, built.model, is_model=is_model)
    drawn.check(where.html)
    request = built.request(model)
    given = groups.InputOptions(input_shape=inputs.input_shape, input=inputs.input, batch=inputs.batch)
    asked = given.request(images, built.seed)
    measure = measured_for(where.view, drawn.color)
    options = {
        "depth": depth,
        "freeze": freeze or (),
        **said(layers),
        "flow": bool(drawn.graph or where.html),
    }
    kept = kept_for(request, asked, **options) if not measure else None
    found = kept.read() if kept is not None and not fresh else None
    raised, told = None, Told(PROGRESS)
    if found is not None:
        record, notes = found
        for note in (*notes, "kept by an earlier run; --fresh builds the model again"):
            PROGRESS.note(note)
    else:
        try:
            record = ms.summary(request, asked, **options, measure=measure, progress=cast(Progress, told))
        except ModelscopeError as error:
            if error.record is None:
                raise
            record, raised = error.record, error
        if kept is not None and raised is None:
            kept.write(record, told.notes)
    if drawn.graph is not None:
        drawn.save(record, is_whole=output.all)
        PROGRESS.note(f"wrote {drawn.graph}")
    emit(where, summary_sheet(record, measure), record)
    if raised is not None:  # the layers up to the one that did are shown all the same
        raise raised
