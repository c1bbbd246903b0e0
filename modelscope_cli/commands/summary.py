"""`modelscope summary`."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import typer

import modelscope_cli as ms
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.summary import SummaryRecord
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.named_model import names_model
from modelscope_cli.shell.options import (
    ImagesArgument,
    InputOptions,
    LayerOptions,
    NamedArgument,
    NamedModelOptions,
    Weights,
)
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import OutputOptions
from modelscope_cli.shell.parameters import command


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryModelOptions(NamedModelOptions):
    """The model of a summary, which needs no weights."""

    weights: Weights = "none"


@command
def summary(
    first: NamedArgument = None,
    images: ImagesArgument = None,
    depth: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Show layers down to this nesting depth.")
    ] = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Count these layers' parameters as frozen.")
    ] = None,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", help="List the models whose name contains MODEL or matches it as a glob, or all models."
        ),
    ] = False,
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            rich_help_panel="Training step",
            help="Also simulate one training step, by default on 2 images, and report its memory.",
        ),
    ] = False,
    optimizer: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel="Training step",
            help="The optimizer of the step: sgd, momentum, nesterov, rmsprop, adagrad, adam, adamw.",
        ),
    ] = "adamw",
    amp: Annotated[
        Literal["bfloat16", "float16"] | None,
        typer.Option(
            rich_help_panel="Training step",
            help="Run the forward pass of the step under autocast to bfloat16 or float16.",
        ),
    ] = None,
    fit: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            rich_help_panel="Training step",
            help="Find the largest batch whose training step fits into this much memory, such as 24GB.",
        ),
    ] = None,
    *,
    on: SummaryModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> None:
    """Print the layers of a model, their shapes, parameters and cost.

    This needs no weights and almost no memory, as shapes are inferred without computing. Shapes and costs are those
    of one forward pass at the model's own input size, which --input-shape and --batch change. The summary of a
    torchvision model is cached, for the same versions and options. The columns time
    and field (the receptive field) are measured on request, by default with random weights.

    --train also simulates one training step, and --fit finds the largest batch.
    --device cuda models the step on CUDA, even on a machine without it.

    Examples:

      modelscope summary resnet34

      modelscope summary vit_b_16 --depth 3 --batch 8

      modelscope summary demo/tiny_resnet.py:TinyResNet --input-shape 1,3,96,96

      modelscope summary resnet18 --columns name,time,field --sort time

      modelscope summary resnet50 --fit 24GB --optimizer momentum

      modelscope summary --list 'vit_*'
    """
    from modelscope_cli.report.listings import models_sheet
    from modelscope_cli.report.summary.table import measured_for, summary_sheet

    where = show.begin()
    if list_:
        catalogue = ms.list_models(on.model or first)
        emit(where, models_sheet(catalogue), catalogue)
        return
    # The first word is the model, unless --model names one.
    model, files = on.choose(first, images, is_model=names_model if on.model else lambda _: True)
    measure = measured_for(where.layout, train or fit is not None)
    step = {"train": train, "optimizer": optimizer, "amp": amp, "fit": fit}
    options = {
        "depth": depth,
        "freeze": freeze or (),
        "layer": layers.layer or (),
        "exclude": layers.exclude or (),
        **step,
    }
    record, raised = _summary(model, data.request(files, on.seed), options, measure)
    if raised is None or where.is_asked_for:  # with the layers up to the failing one
        emit(where, summary_sheet(record, measure), record)
    if raised is not None:
        raise raised


def _summary(
    model: ModelRequest, inputs: InputRequest, options: dict[str, Any], measure: tuple[str, ...]
) -> tuple[SummaryRecord, ModelscopeError | None]:
    """Return a cached summary, else a new one, and the exception of its forward, if any."""
    from modelscope_cli.models.summary_cache import kept_for
    from modelscope_cli.records.progress import Told

    cache_file = kept_for(model, inputs, **options) if not measure else None
    cached = cache_file.read() if cache_file is not None else None
    if cached is not None:
        for note in (*cached[1], "cached result"):
            PROGRESS.note(note)
        return cached[0], None
    messages = Told(PROGRESS)
    try:
        record = ms.summary(model, inputs, **options, measure=measure, progress=cast(Progress, messages))
    except ModelscopeError as error:
        if error.record is None:
            raise
        return error.record, error
    if cache_file is not None:
        cache_file.write(record, [*messages.notes])
    return record, None
