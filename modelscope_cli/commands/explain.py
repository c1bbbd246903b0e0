"""`modelscope explain`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import modelscope_cli as ms
from modelscope_cli import interrupts
from modelscope_cli.analysis.explaining.request import METHOD_NAMES
from modelscope_cli.errors import UsageError
from modelscope_cli.records.explain import MOST_SHOWN
from modelscope_cli.shell import console
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    Hook,
    ImagesArgument,
    InputOptions,
    Labels,
    ModelArgument,
    ModelOptions,
    OutputKind,
)
from modelscope_cli.shell.output import check_tensors_file, emit, save_as, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions, Resume, Save
from modelscope_cli.shell.parameters import command

NOT_MET = 1


@command
def explain(
    first: ModelArgument = None,
    images: ImagesArgument = None,
    method: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            rich_help_panel="Explanation",
            help="The methods: auto (a few that complement each other), all (all that apply), or "
            f"{', '.join(METHOD_NAMES)}.",
        ),
    ] = "auto",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            rich_help_panel="Explanation",
            help="The output value to explain: a class index or label, predicted, box:N, or mask:CLASS.",
        ),
    ] = "predicted",
    labels: Labels = None,
    layer: Annotated[
        str | None,
        typer.Option(
            "--layer",
            "-l",
            metavar="LAYER",
            rich_help_panel="Explanation",
            help="The layer to explain.",
            show_default="found by tracing a pass back from the score",
        ),
    ] = None,
    receipt: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            rich_help_panel="Receipt",
            help="The tests of the maps: quick (repeatability, dependence on the image and on the head, covering) "
            "or none.",
        ),
    ] = "quick",
    require: Annotated[
        Literal["passed"] | None,
        typer.Option(rich_help_panel="Receipt", help="Exit with 1 unless the best map passes its tests."),
    ] = None,
    hook: Hook = None,
    output_kind: OutputKind = "auto",
    out: Out = None,
    resume: Resume = False,
    save_tensors: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the maps as .safetensors.")
    ] = None,
    save: Save = True,
    *,
    on: ModelOptions,
    data: InputOptions,
    show: OutputOptions,
) -> int:
    """Show the evidence for a class in an image, and test each map.

    The layer is found by tracing one pass back from the score, and the reason for the choice is printed. Maps that
    pass more tests come first.

    Examples:

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --method
        hirescam --require passed
    """
    from modelscope_cli.analysis.explaining.request import check_requirement, choose_methods, receipt_kind
    from modelscope_cli.inputs.files import find_images
    from modelscope_cli.report.explain.table import explain_columns, explain_sheet

    where = show.begin(is_shared=True)
    model, files = on.choose(first, images)
    where.layout.check(explain_columns())
    choose_methods(method)
    kind = receipt_kind(receipt)
    check_requirement(require, kind)
    inputs = data.request(files, on.seed)
    if save_tensors is not None:
        if not console.settings.is_silent:
            check_tensors_file(save_tensors)
        if len(find_images(name for name in files if name != "-").files) > MOST_SHOWN:
            message = f"--save-tensors keeps the maps of at most {MOST_SHOWN} images"
            raise UsageError(message, "leave out --save-tensors")
    folder = show.folder(out, model.model, beside=save_tensors, save=save, resume=resume)
    record = ms.explain(
        model,
        inputs,
        method=method,
        target=target,
        labels=labels,
        layer=layer,
        receipt=kind,
        require=require,
        hook=hook or (),
        output_kind=output_kind,
        out=out,
        resume=resume,
        share=True,
        force=show.force,
        progress=PROGRESS,
    )
    if save_tensors is not None:
        record = save_as(record, save_tensors)
    record = save_report(record, folder, has_content=bool(interrupts.resumable))
    emit(where, explain_sheet(record), record)
    return 0 if record.passed else NOT_MET
