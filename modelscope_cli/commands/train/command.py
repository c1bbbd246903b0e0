"""`modelscope train`."""

from dataclasses import asdict
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell import training as shared
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import make_run, read_options, set_up, tell
from modelscope_cli.shell.verdict import FailOnOpt, is_failed

_HOW = shared.HOW


def train(
    data: shared.DataOpt = None,
    pictures: shared.PicturesOpt = 2000,
    size: shared.SizeOpt = 64,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=1, help="Changes of the weights.", rich_help_panel=_HOW)
    ] = 100,
    batch: shared.BatchOpt = 32,
    optimizer: shared.OptimizerOpt = "momentum",
    lr: Annotated[
        float,
        typer.Option("--lr", metavar="R", help="Learning rate, or the peak of it.", rich_help_panel=_HOW),
    ] = 0.05,
    schedule: Annotated[
        str,
        typer.Option("--schedule", metavar="NAME", help="constant, one-cycle, cosine.", rich_help_panel=_HOW),
    ] = "constant",
    label_smoothing: shared.SmoothingOpt = 0.0,
    weight_decay: shared.DecayOpt = 0.0,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            "--clip-norm", metavar="V", help="Scale all gradients to this norm.", rich_help_panel=_HOW
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            metavar="N",
            min=1,
            help="Stop once the held-out loss has not fallen for N epochs.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    callback: Annotated[
        list[str] | None,
        typer.Option(
            "--callback",
            metavar="FILE.py:CLASS",
            help="A class of your own that is told what happens (repeatable); see "
            "modelscope_cli/training/runner.py.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="OPTION=A,B",
            help="Train once for each value, and each combination of several --vary: init, norm, activation, "
            "optimizer, schedule, lr, batch, label-smoothing, weight-decay.",
            rich_help_panel=_HOW,
        ),
    ] = None,
    init: shared.InitOpt = "default",
    activation: shared.ActivationOpt = "relu",
    leak: shared.LeakOpt = 0.1,
    subtract: shared.SubtractOpt = 0.4,
    maximum: shared.MaximumOpt = None,
    norm: shared.NormOpt = "batch",
    freeze: shared.FreezeOpt = None,
    train_only: shared.TrainOnlyOpt = None,
    model: opt.ModelOpt = "resnet18",
    weights: opt.WeightsOpt = "none",
    checkpoint: opt.CheckpointOpt = None,
    strict: opt.StrictOpt = True,
    model_arg: opt.ModelArgsOpt = None,
    device: opt.DeviceOpt = "auto",
    seed: opt.SeedOpt = 0,
    offline: opt.OfflineOpt = False,
    every: Annotated[
        int | None,
        typer.Option(
            "--every",
            metavar="K",
            min=1,
            help="Look at every K-th step.",
            show_default="200 looks at most",
            rich_help_panel="Output",
        ),
    ] = None,
    save_every: Annotated[
        int | None,
        typer.Option(
            "--save-every",
            metavar="N",
            min=1,
            help="Also keep the weights after every N steps.",
            rich_help_panel="Output",
        ),
    ] = None,
    fail_on: FailOnOpt = None,
    out: opt.OutDirOpt = None,
    force: opt.ForceOpt = False,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> int:
    """Train a classifier for a few steps and show what happens inside it; or compare ways to train it.

    Prints every layer as it was at the first and at the last step, or, with --vary, one row a variant; all of them
    see the same pictures in the same order. A tenth of the pictures is held out and measured on after each epoch.

    Examples:

      modelscope train -m samples/tiny_resnet.py:TinyResNet --size 48 --steps 60

      modelscope train -m samples/tiny_resnet.py:TinyResNet --vary init=default,lsuv --vary norm=batch,none

      modelscope train --data flowers/ -m resnet18 -w DEFAULT --train-only fc --schedule one-cycle --steps 300
    """  # fmt: skip
    options = locals()
    from modelscope_cli.commands.train.folder import (
        SINGLE_FILES,
        STUDY_FILES,
        WEIGHTS,
        save_report,
        save_weights,
    )
    from modelscope_cli.commands.train.table import train_columns, train_sheet
    from modelscope_cli.records.run import Notice
    from modelscope_cli.records.train import Training, TrainRecord
    from modelscope_cli.report.folder import OutputFolder, free_folder
    from modelscope_cli.report.sheet import choose_columns
    from modelscope_cli.training.request import TrainRequest, check_request, variants_of

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, _ = read_options({**options, "num_classes": None, "dtype": "float32", "input_shape": None})
    given = {name: options[name] for name in asdict(TrainRequest()) if name in options}
    asked = TrainRequest(**given)
    check_request(asked)
    variants = variants_of(asked, vary or ())
    for variant in variants:
        shared.check_init(variant.request, request)
    is_study = bool(vary)
    if is_study and save_every:
        raise UsageError("'--save-every' and '--vary' exclude each other", "leave out --save-every")
    choose_columns(train_columns(is_study), columns)
    folder = OutputFolder(out or free_folder("train", model), force)
    folder.check()

    from modelscope_cli.training.callbacks import Checkpoints, UserCallback
    from modelscope_cli.training.fit import NEAR_ZERO, train_once
    from modelscope_cli.training.model import prepare

    pool = shared.open_data(data, pictures, size, seed)
    trainings: list[Training] = []
    found: list[Notice] = []
    with folder.open() as stage, _console.progress("steps", len(variants) * steps) as bar:
        for variant in variants:
            loaded = shared.load_for(request, len(pool.classes), is_first=not trainings)
            inputs, _ = next(iter(pool.batches(variant.request.batch, seed)))
            notices = prepare(
                loaded.module, variant.request, inputs.to(loaded.device), freeze or (), train_only or ()
            )
            if not trainings:
                tell((), notices)
                found += [*loaded.warnings, *notices]
            saved = None
            if save_every:
                saved = Checkpoints(
                    save_every, lambda net, path: save_weights(net.state_dict(), path, pool.classes), stage
                )
            trainings.append(
                train_once(
                    loaded.module,
                    pool,
                    variant,
                    loaded.device,
                    own_callbacks=[UserCallback(spec) for spec in callback or ()],
                    advance=lambda: shared.advance_of(bar),
                    checkpoints=saved,
                )
            )
        found += shared.warn_of_skipped(pool)
        record = TrainRecord(
            run=make_run("train", loaded, shared.input_of(tuple(inputs.shape), pool), seed, tuple(found)),
            trainings=tuple(trainings),
            data=shared.describe_data(pool),
            near_zero=NEAR_ZERO,
            out_dir=str(folder.path),
            files=STUDY_FILES if is_study else (*SINGLE_FILES, *(saved.files if saved else ())),
        )
        save_report(record, stage)
        if not is_study:
            save_weights(loaded.module.state_dict(), stage / WEIGHTS, pool.classes)
    _console.note(f"wrote {folder.path}")
    emit(where, train_sheet(record, columns), record.to_dict())
    return int(is_failed(record.findings, fail_on))
