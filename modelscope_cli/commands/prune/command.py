"""`modelscope prune`."""

from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from modelscope_cli.analysis.interventions import read_hooks
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import bind, conclude, load, make_run, open_for, read_options, set_up, tell

_CUT = "What is cut"


class Method(StrEnum):
    """Which weights go first."""

    l1 = "l1"
    l2 = "l2"
    random = "random"
    activation = "activation"


class Table(StrEnum):
    """Which of the tables is printed."""

    drift = "drift"
    layers = "layers"


def prune(
    images: opt.ImagesArg = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    amount: Annotated[
        float,
        typer.Option(
            "--amount", metavar="SHARE", help="Share that is cut, from 0 to below 1.", rich_help_panel=_CUT
        ),
    ] = 0.3,
    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="What goes first: the smallest by L1 or L2 norm (the same for single weights), random ones, or "
            "with --channels those of the smallest mean |activation| over the images (Molchanov et al. 2017).",
            rich_help_panel=_CUT,
        ),
    ] = Method.l1,
    channels: Annotated[
        bool,
        typer.Option(
            "--channels", help="Cut whole output channels, not single weights.", rich_help_panel=_CUT
        ),
    ] = False,
    is_global: Annotated[
        bool,
        typer.Option(
            "--global",
            help="The share is of all layers' weights together, not of each layer's.",
            rich_help_panel=_CUT,
        ),
    ] = False,
    sweep: Annotated[
        str,
        typer.Option(
            "--sweep", metavar="A,B,...", help="Also measure the drift at these.", rich_help_panel=_CUT
        ),
    ] = "0.1,0.3,0.5,0.7,0.9",
    save: Annotated[
        Path | None,
        typer.Option(
            "--save",
            metavar="FILE",
            help="Write the weights with zeros in them as .safetensors, for --checkpoint. Zeros alone make "
            "nothing smaller or faster.",
            rich_help_panel="Output",
        ),
    ] = None,
    hook: opt.HookOpt = None,
    model: opt.ModelOpt = "resnet34",
    weights: opt.WeightsOpt = "auto",
    checkpoint: opt.CheckpointOpt = None,
    strict: opt.StrictOpt = True,
    num_classes: opt.NumClassesOpt = None,
    model_arg: opt.ModelArgsOpt = None,
    device: opt.DeviceOpt = "auto",
    dtype: opt.DtypeOpt = "float32",
    seed: opt.SeedOpt = 0,
    offline: opt.OfflineOpt = False,
    input_shape: opt.InputShapeOpt = None,
    size: opt.SizeOpt = None,
    mean: opt.MeanOpt = None,
    std: opt.StdOpt = None,
    normalize: opt.NormalizeOpt = True,
    batch: opt.BatchOpt = None,
    out: opt.OutDirOpt = None,
    force: opt.ForceOpt = False,
    table: Annotated[
        Table, typer.Option("--table", help="Which table to print.", rich_help_panel="Output")
    ] = Table.drift,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Cut weights away and print how far the answers drift; save the curve.

    The masks are those of torch.nn.utils.prune, put in place by hooks while the model runs: its parameters and
    its file stay as they are. A --layer that is named means everything below it. Biases and batch norms are left.

    Examples:

      modelscope prune samples/star.png -m squeezenet1_1 -c samples/shapes_squeezenet1_1.safetensors

      modelscope prune 'photos/*.jpg' --amount 0.5 --global --save pruned.safetensors

      modelscope prune samples/harbour.jpg --model resnet18 --weights none --layer conv --channels --method l2
    """
    options = locals()
    from modelscope_cli.analysis.pruning.request import PruneRequest, check_request, read_sweep
    from modelscope_cli.commands.prune.folder import FILES, check_weights_file, pack_weights, save_report
    from modelscope_cli.commands.prune.table import prune_columns, prune_sheet
    from modelscope_cli.records.prune import PruneRecord
    from modelscope_cli.records.run import Notice
    from modelscope_cli.report.folder import OutputFolder, free_folder, write_bytes
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "prune")
    choose_columns(prune_columns(table), columns)
    asked = PruneRequest(amount, read_sweep(sweep), method.value, channels, is_global, seed)
    check_request(asked, bool(given.files))
    folder = OutputFolder(out or free_folder("prune", model), force)
    folder.check()
    if save is not None:
        check_weights_file(save, checkpoint)

    from modelscope_cli.analysis.pruning.channel_importance import channel_importance, unranked
    from modelscope_cli.analysis.pruning.drift import measure_pruning, pruned_state
    from modelscope_cli.analysis.pruning.masks import find_prunable

    loaded = load(request)
    inputs = open_for(given, loaded)
    bound = bind(hooks, loaded, next(iter(inputs)).args, seed)
    prunables = find_prunable(loaded.module, layer or (), exclude or ())

    def track(batches: Any, what: str) -> Iterator[Any]:
        return _console.track(what, batches, inputs.n_batches)

    importance = None
    found: list[Notice] = []
    if method == Method.activation:
        importance = channel_importance(
            loaded.module, inputs, prunables, interventions=bound.interventions, track=track
        )
        found += unranked(prunables, importance)
    if not given.files:
        found.append(Notice("drift_on_noise", "the drift is measured on noise, which no picture looks like"))
    tell((), tuple(found))
    pruning = measure_pruning(
        loaded.module,
        inputs,
        prunables,
        asked,
        importance=importance,
        categories=loaded.categories,
        interventions=bound.interventions,
        track=track,
    )
    tell((), pruning.warnings)
    hook_reports, hook_warnings = conclude(bound)
    found += (*pruning.warnings, *hook_warnings)
    record = PruneRecord(
        run=make_run("prune", loaded, inputs.info, seed, (*loaded.warnings, *inputs.warnings, *found)),
        layers=pruning.layers,
        totals=pruning.totals,
        before=pruning.before,
        after=pruning.after,
        file=None,
        sweep=pruning.sweep,
        amount=amount,
        method=method.value,
        structured=channels,
        scope="global" if is_global else "layer",
        images=inputs.n_images,
        hooks=hook_reports,
        out_dir=str(folder.path),
        files=FILES,
    )
    with folder.open() as stage:
        if save is not None:
            content = pack_weights(record, pruned_state(loaded.module, pruning.masks), loaded.categories)
            record = replace(record, file=str(save), file_bytes=len(content))
            write_bytes(save, content)
            _console.note(f"wrote {save}")
        save_report(record, stage)
    _console.note(f"wrote {folder.path}")
    emit(where, prune_sheet(record, table, columns), record.to_dict())
