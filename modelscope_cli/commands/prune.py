"""`modelscope prune`."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.records.prune import DEFAULT_SWEEP
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import (
    Hook,
    ImagesArgument,
    InputOptions,
    Labels,
    LayerOptions,
    ModelArgument,
    ModelOptions,
    OutputKind,
)
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions, Save
from modelscope_cli.shell.parameters import command


@command
def prune(
    first: ModelArgument = None,
    images: ImagesArgument = None,
    amount: Annotated[
        float,
        typer.Option(
            metavar="SHARE", rich_help_panel="What is cut", help="The share to prune, from 0 to below 1."
        ),
    ] = 0.3,
    method: Annotated[
        Literal["l1", "l2", "random"],
        typer.Option(
            rich_help_panel="What is cut",
            help="What to prune first: the smallest L1 or L2 norm (the same for single weights), or random ones.",
        ),
    ] = "l1",
    by_channel: Annotated[
        bool,
        typer.Option(
            "--by-channel",
            rich_help_panel="What is cut",
            help="Prune whole output channels, not single weights.",
        ),
    ] = False,
    global_: Annotated[
        bool,
        typer.Option(
            "--global",
            rich_help_panel="What is cut",
            help="Rank the weights of all layers together, not layer by layer.",
        ),
    ] = False,
    sweep: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,...",
            rich_help_panel="What is cut",
            help="Also measure the drift at these shares.",
            show_default="0.1,0.3,0.5,0.7,0.9",
        ),
    ] = None,
    hook: Hook = None,
    output_kind: OutputKind = "auto",
    labels: Labels = None,
    out: Out = None,
    save_weights: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the pruned weights as .safetensors, for --checkpoint. Zeros alone do not make the "
            "model smaller or faster.",
        ),
    ] = None,
    save: Save = True,
    table: Annotated[Literal["drift", "layers"], typer.Option(help="Which table to print.")] = "drift",
    *,
    on: ModelOptions,
    data: InputOptions,
    layers: LayerOptions,
    show: OutputOptions,
) -> None:
    """Prune weights, and measure how far the predictions drift.

    The masks are those of torch.nn.utils.prune, applied by hooks while the model runs: its parameters and its file
    do not change. --layer includes all sublayers. Biases and batch norms are not pruned. For folders named after
    classes, the accuracy before and after is printed.

    Examples:

      modelscope prune demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope prune demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --amount 0.5 --global --save-weights pruned.safetensors

      modelscope prune resnet18 demo/harbour.jpg --weights none --layer conv --by-channel --method l2
    """
    from modelscope_cli.analysis.pruning.request import make_request
    from modelscope_cli.report.prune.table import prune_columns, prune_sheet

    where = show.begin()
    model, files = on.choose(first, images)
    inputs = data.request(files, on.seed)
    where.layout.check(prune_columns(table))
    cut: dict[str, Any] = {
        "amount": amount,
        "method": method,
        "by_channel": by_channel,
        "sweep": sweep or DEFAULT_SWEEP,
    }
    make_request(**cut, is_global=global_, seed=model.seed)  # refused before torch is imported
    folder = show.folder(out, model.model, beside=save_weights, save=save)
    record = ms.prune(
        model,
        inputs,
        **cut,
        layer=layers.layer or (),
        exclude=layers.exclude or (),
        global_=global_,
        hook=hook or (),
        output_kind=output_kind,
        labels=labels,
        save_weights=save_weights,
        force=show.force,
        progress=PROGRESS,
    )
    record = save_report(record, folder)
    emit(where, prune_sheet(record, table), record)
