"""`modelscope summary`."""

from dataclasses import dataclass
from typing import Annotated, cast

import typer

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.records.progress import Progress
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import ModelArg, SameModelOpt, take_model
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import emit


@dataclass(frozen=True, slots=True)
class Built:
    """How the model is built, and the noise it is run on: neither weights nor images are needed."""

    model: SameModelOpt = None
    input_shape: opt.InputShapeOpt = None
    input: opt.NamedInputsOpt = None
    batch: opt.BatchOpt = None
    num_classes: opt.NumClassesOpt = None
    checkpoint: opt.CheckpointOpt = None
    key: opt.KeyOpt = None
    strict: opt.StrictOpt = None
    model_arg: opt.ModelArgsOpt = None
    dtype: opt.DtypeOpt = "float32"
    seed: opt.SeedOpt = 0


_BUILT = Built()


@spread
def summary(
    first: ModelArg = None,
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
    layers: groups.LayerOptions = groups.LAYERS,
    built: Built = _BUILT,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Print the layers of a model with their shapes, parameters and cost.

    Needs no weights and almost no memory: the model is built and run without data. Shapes and costs are
    those of one forward at the model's own input size; --input-shape and --batch change it. The summary of a
    model of torchvision is kept in the user's cache, for the same versions and options.

    Examples:

      modelscope summary resnet34

      modelscope summary vit_b_16 --depth 3 --batch 8

      modelscope summary demo/tiny_resnet.py:TinyResNet --input-shape 1,3,96,96
    """
    from modelscope_cli.commands.summary.kept import Told, kept_for
    from modelscope_cli.commands.summary.table import summary_columns, summary_sheet

    where = output.begin()
    model, _ = take_model("summary", first, (), built.model, is_model=lambda _: True)
    request = groups.ModelOptions(
        weights="none",
        checkpoint=built.checkpoint,
        key=built.key,
        strict=built.strict,
        num_classes=built.num_classes,
        model_arg=built.model_arg,
        dtype=built.dtype,
        seed=built.seed,
    ).request(model)
    given = groups.InputOptions(input_shape=built.input_shape, input=built.input, batch=built.batch)
    asked = given.request(None, built.seed)
    where.view.check(summary_columns())
    kept = kept_for(request, asked, depth=depth, freeze=freeze, **said(layers))
    found = kept.read() if kept is not None and not fresh else None
    if found is not None:
        record, notes = found
        for note in (*notes, "kept by an earlier run; --fresh builds the model again"):
            PROGRESS.note(note)
        emit(where, summary_sheet(record), record)
        return
    raised, told = None, Told(PROGRESS)
    try:
        record = ms.summary(
            request, asked, depth=depth, freeze=freeze or (), **said(layers), progress=cast(Progress, told)
        )
    except ModelscopeError as error:
        if error.record is None:
            raise
        record, raised = error.record, error
    if kept is not None and raised is None:
        kept.write(record, told.notes)
    emit(where, summary_sheet(record), record)
    if raised is not None:  # the layers up to the one that did are shown all the same
        raise raised
