"""`modelscope lrfind`."""

import math
from dataclasses import asdict
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell import training as shared
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import make_run, read_options, set_up, tell

_SWEEP = "Sweep"


def lrfind(
    data: shared.DataOpt = None,
    loaders: Annotated[
        str | None,
        typer.Option(
            "--loaders",
            metavar="FILE.py:NAME",
            help="Batches of your own: a DataLoader, or a function that returns one, or (train, valid).",
            rich_help_panel=shared.DATA,
        ),
    ] = None,
    pictures: shared.PicturesOpt = 2000,
    size: shared.SizeOpt = 64,
    low: Annotated[
        float, typer.Option("--from", metavar="R", help="First learning rate.", rich_help_panel=_SWEEP)
    ] = 1e-5,
    high: Annotated[
        float, typer.Option("--to", metavar="R", help="Last learning rate.", rich_help_panel=_SWEEP)
    ] = 10.0,
    steps: Annotated[
        int, typer.Option("--steps", metavar="N", min=3, help="Steps on the way.", rich_help_panel=_SWEEP)
    ] = 100,
    linear: Annotated[
        bool, typer.Option("--linear", help="Raise it evenly, not by a factor.", rich_help_panel=_SWEEP)
    ] = False,
    smoothing: Annotated[
        float,
        typer.Option("--smoothing", metavar="B", help="Weight of the past, 0 to 1.", rich_help_panel=_SWEEP),
    ] = 0.9,
    diverged: Annotated[
        float,
        typer.Option(
            "--diverged",
            metavar="X",
            help="Stop once the smoothed loss is X times its least value.",
            rich_help_panel=_SWEEP,
        ),
    ] = 4.0,
    batch: shared.BatchOpt = 32,
    optimizer: shared.OptimizerOpt = "momentum",
    label_smoothing: shared.SmoothingOpt = 0.0,
    weight_decay: shared.DecayOpt = 0.0,
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
    num_classes: opt.NumClassesOpt = None,
    model_arg: opt.ModelArgsOpt = None,
    device: opt.DeviceOpt = "auto",
    seed: opt.SeedOpt = 0,
    offline: opt.OfflineOpt = False,
    out: opt.OutDirOpt = None,
    force: opt.ForceOpt = False,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Sweep the learning rate while training, and suggest where to set it; everything is put back.

    The hashes of weights, buffers, optimizer and random state before and after are printed as the proof.

    Examples:

      modelscope lrfind -m samples/tiny_resnet.py:TinyResNet --size 48

      modelscope lrfind --data flowers/ -m resnet18 -w DEFAULT --train-only fc --optimizer adamw --to 0.1

      modelscope lrfind --loaders train.py:loaders -m train.py:Net --linear --from 0.001 --to 0.5
    """
    options = locals()
    from modelscope_cli.commands.lrfind.pictures import save_lrfind_plot
    from modelscope_cli.commands.lrfind.table import LRFIND_COLUMNS, lrfind_sheet
    from modelscope_cli.records.lrfind import LrfindRecord
    from modelscope_cli.report.folder import OutputFolder, free_folder, write_text
    from modelscope_cli.report.json import render_json
    from modelscope_cli.report.sheet import choose_columns
    from modelscope_cli.training.request import TrainRequest, check_request

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, _ = read_options({**options, "dtype": "float32", "input_shape": None})
    _check_sweep(low, high, smoothing, diverged)
    given = {name: options[name] for name in asdict(TrainRequest()) if name in options}
    asked = TrainRequest(**{**given, "lr": low})
    check_request(asked)
    shared.check_init(asked, request)
    if loaders is not None and data is not None:
        raise UsageError("'--loaders' and '--data' exclude each other", "leave out --data")
    choose_columns(LRFIND_COLUMNS, columns)
    folder = OutputFolder(out or free_folder("lrfind", model), force)
    folder.check()

    from modelscope_cli.hooks.session import HookSession
    from modelscope_cli.training.callbacks import Progress, ToDevice
    from modelscope_cli.training.fit import all_seeded, classification_loss, run_forward
    from modelscope_cli.training.loaders import UserBatches
    from modelscope_cli.training.lr_range import Sweep, find_lr
    from modelscope_cli.training.model import prepare, trainable
    from modelscope_cli.training.optim import make_optimizer

    pool = None if loaders else shared.open_data(data, pictures, size, seed)
    batches = pool.batches(batch, seed) if pool else UserBatches(loaders or "")
    n_classes = len(pool.classes) if pool else None
    loaded = shared.load_for(request, n_classes)
    inputs, _ = next(iter(pool.batches(batch, seed) if pool else batches))
    notices = prepare(loaded.module, asked, inputs.to(loaded.device), freeze or (), train_only or ())
    tell((), notices)
    net = loaded.module
    rule = make_optimizer(trainable(net), asked)
    with (
        _console.progress("steps", steps) as bar,
        all_seeded(seed, loaded.device),
        HookSession(net, is_restoring=False, with_gradients=True) as session,
    ):
        test = find_lr(
            net,
            rule,
            batches,
            classification_loss(label_smoothing, n_classes),
            Sweep(low, high, steps, linear, smoothing, diverged),
            [ToDevice(loaded.device), Progress(lambda: shared.advance_of(bar))],
            forward=lambda inputs: run_forward(session, inputs),
        )
    skipped = shared.warn_of_skipped(pool) if pool else ()
    record = LrfindRecord(
        run=make_run(
            "lrfind",
            loaded,
            shared.input_of(tuple(inputs.shape), pool),
            seed,
            (*loaded.warnings, *notices, *skipped),
        ),
        **{name: getattr(test, name) for name in type(test).__slots__},
        optimizer=optimizer,
        sweep="linear" if linear else "exponential",
        data=pool.source if pool else loaders or "",
        out_dir=str(folder.path),
        files=("lr.png", "report.json"),
    )
    with folder.open() as stage:
        save_lrfind_plot(record, stage / "lr.png")
        write_text(stage / "report.json", render_json(record.to_dict()))
    _console.note(f"wrote {folder.path}")
    emit(where, lrfind_sheet(record, columns), record.to_dict())


def _check_sweep(low: float, high: float, smoothing: float, diverged: float) -> None:
    if not (0 < low < high and math.isfinite(high)):
        raise UsageError(f"'--from {low:g} --to {high:g}' is no rising range above 0", "--from 1e-5 --to 10")
    if not 0 <= smoothing < 1:
        raise UsageError(f"'--smoothing {smoothing:g}' is not from 0 to below 1", "--smoothing 0.9")
    if not diverged > 1:
        raise UsageError(f"'--diverged {diverged:g}' is not more than 1", "--diverged 4")
