"""`modelscope grads`."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.analysis.interventions import read_hooks
from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import (
    bind,
    conclude,
    fit_batch,
    load,
    make_run,
    open_for,
    read_options,
    set_up,
    tell,
)

_LOSS, _CLIP, _TRAIN = "Loss", "Clipping", "What is trained"


class Table(StrEnum):
    """Which of the tables is printed."""

    parameters = "parameters"
    activations = "activations"
    batch_norm = "batch-norm"


def grads(
    images: opt.ImagesArg = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    hook: opt.HookOpt = None,
    loss: Annotated[
        str,
        typer.Option(
            "--loss",
            metavar="LOSS",
            help="auto (what fits the output), cross-entropy, nll, bce (several labels or none), mse, mean, "
            "logit, or path/to/file.py:fn called as fn(output) or fn(output, target).",
            rich_help_panel=_LOSS,
        ),
    ] = "auto",
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="CLASS",
            help="A class index, a label, or predicted.",
            rich_help_panel=_LOSS,
        ),
    ] = "predicted",
    label_smoothing: Annotated[
        float, typer.Option("--label-smoothing", metavar="E", help="Of cross-entropy.", rich_help_panel=_LOSS)
    ] = 0.0,
    weight_decay: Annotated[
        float,
        typer.Option(
            "--weight-decay",
            metavar="L",
            help="Add a Gaussian prior, L/2 |w|^2; its share of every gradient is shown.",
            rich_help_panel=_LOSS,
        ),
    ] = 0.0,
    clip: Annotated[
        float | None,
        typer.Option(
            "--clip",
            metavar="V",
            help="Clamp every parameter's gradient into [-V, V] by a hook.",
            rich_help_panel=_CLIP,
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            "--clip-norm", metavar="V", help="Scale all gradients to this norm.", rich_help_panel=_CLIP
        ),
    ] = None,
    clip_activations: Annotated[
        float | None,
        typer.Option(
            "--clip-activations",
            metavar="V",
            help="Clamp what flows back through the layers of --layer; all layers are shown.",
            rich_help_panel=_CLIP,
        ),
    ] = None,
    freeze: Annotated[
        list[str] | None,
        typer.Option(
            "--freeze",
            metavar="PATTERN",
            help="Do not train these layers (repeatable).",
            rich_help_panel=_TRAIN,
        ),
    ] = None,
    train_only: Annotated[
        list[str] | None,
        typer.Option(
            "--train-only",
            metavar="PATTERN",
            help="Train nothing but these layers (repeatable).",
            rich_help_panel=_TRAIN,
        ),
    ] = None,
    mode: opt.ModeOpt = opt.Mode.auto,
    repeat: Annotated[
        int,
        typer.Option(
            "--repeat", min=1, metavar="N", help="Go through the input N times; noise is new each time."
        ),
    ] = 1,
    full_backward: Annotated[
        bool,
        typer.Option(
            "--full-backward", help="Read activation gradients with register_full_backward_hook instead."
        ),
    ] = False,
    vanishing: Annotated[
        float,
        typer.Option("--vanishing", metavar="X", help="Mark |g| below X times |g| at the output."),
    ] = 1e-5,
    exploding: Annotated[
        float,
        typer.Option("--exploding", metavar="X", help="Mark |g| above X times |g| at the output."),
    ] = 1e3,
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
    save: Annotated[
        bool,
        typer.Option("--save/--no-save", help="Write the report, or only print.", rich_help_panel="Output"),
    ] = True,
    table: Annotated[
        Table, typer.Option("--table", help="Which table to print.", rich_help_panel="Output")
    ] = Table.parameters,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Run a forward and a backward pass and print what the gradients do; save a report with a picture.

    Several images are several passes, one image each unless --batch says otherwise: then the mean gradient and
    the noise around it are shown. The gradients are differentiated, hooked and thrown away; nothing is trained.

    Examples:

      modelscope grads samples/harbour.jpg --model resnet34 --weights none --clip 1.0

      modelscope grads samples/star.png -m samples/tiny_resnet.py:TinyResNet -c samples/sick.safetensors -t star

      modelscope grads --model resnet18 --weights none --train-only fc --num-classes 10 --mode train --no-save

      modelscope grads samples/harbour.jpg -m resnet34 -w none --hook 'grad:clamp=-1,1@conv' --no-save
    """
    options = locals()
    from modelscope_cli.analysis.gradients.request import (
        GradsRequest,
        LossRequest,
        Thresholds,
        check_loss,
        check_thresholds,
        choose_clip,
    )
    from modelscope_cli.commands.grads.table import grads_columns, grads_sheet
    from modelscope_cli.records.grads import GradsRecord
    from modelscope_cli.report.batch_norm_table import check_drift
    from modelscope_cli.report.folder import OutputFolder, free_folder
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "grads", has_backward=True)
    choose_columns(grads_columns(table), columns)
    asked = GradsRequest(
        loss=LossRequest(loss, target, label_smoothing, weight_decay),
        clip=choose_clip(clip, clip_norm, clip_activations),
        freeze=tuple(freeze or ()),
        train_only=tuple(train_only or ()),
        full_backward=full_backward,
        thresholds=Thresholds(vanishing, exploding),
    )
    check_loss(asked.loss)
    check_thresholds(asked.thresholds)
    _check_clip(clip_activations, full_backward)
    if (out or force) and not save:
        raise UsageError("--no-save writes no folder", "leave out --no-save, or --out and --force")
    folder = OutputFolder(out or free_folder("grads", model), force) if save else None
    if folder is not None:
        folder.check()

    from modelscope_cli.analysis.gradients.measure import measure_gradients
    from modelscope_cli.hooks.selection import select, uncalled

    loaded = load(request)
    has_own_loss = loaded.family == "detection" and loss == "auto"
    is_training = mode == opt.Mode.train or (mode == opt.Mode.auto and has_own_loss)
    if has_own_loss and mode == opt.Mode.auto:
        _console.note("mode: train (auto; detection models have a loss nowhere else)")
    if given.files and given.batch is None and not is_training:
        given = replace(given, batch=1)
    if table == Table.batch_norm:
        check_drift(is_training)
    inputs = open_for(fit_batch(given, is_training), loaded)
    first = next(iter(inputs)).args
    selection = select(loaded.module, layer or (), exclude or (), first, is_feedforward=loaded.is_feedforward)
    tell(selection.notes, ())
    bound = bind(hooks, loaded, first, seed)
    gradients = measure_gradients(
        loaded,
        inputs,
        selection,
        replace(asked, is_training=is_training),
        interventions=bound.interventions,
        track=lambda batches, what: _console.track(what, batches, inputs.n_batches),
    )
    tell((), gradients.warnings)
    hook_reports, hook_warnings = conclude(bound)
    warnings = (*loaded.warnings, *inputs.warnings, *gradients.warnings, *hook_warnings)
    record = GradsRecord(
        run=make_run("grads", loaded, inputs.info, seed, warnings),
        loss=gradients.loss,
        parameters=gradients.parameters,
        activations=gradients.activations,
        totals=gradients.totals,
        clip=gradients.clip,
        thresholds=gradients.thresholds,
        mode="train" if is_training else "eval",
        passes=gradients.passes,
        images=inputs.n_images,
        batch_norm=gradients.batch_norm,
        saving=gradients.saving,
        not_called=uncalled(loaded.module, selection, [row.name for row in gradients.activations]),
        hooks=hook_reports,
    )
    if folder is not None:
        from modelscope_cli.commands.grads.folder import FILES, save_report

        record = replace(record, out_dir=str(folder.path), files=FILES)
        with folder.open() as stage:
            save_report(record, stage)
        _console.note(f"wrote {folder.path}")
    emit(where, grads_sheet(record, table, columns), record.to_dict())


def _check_clip(clip_activations: float | None, full_backward: bool) -> None:
    if full_backward and clip_activations is not None:
        raise UsageError(
            "--clip-activations works by tensor hooks, not --full-backward", "leave out --full-backward"
        )
