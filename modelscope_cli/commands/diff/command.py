"""`modelscope diff`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelscope_cli.analysis.interventions import ReadHook, read_hooks
from modelscope_cli.commands.diff import options as b_opt
from modelscope_cli.commands.diff.sides import describe, head, load_both, open_shared, open_weights
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import bind, conclude, read_options, set_up, tell

if TYPE_CHECKING:
    from modelscope_cli.analysis.comparison.request import DiffRequest
    from modelscope_cli.inputs.request import InputRequest
    from modelscope_cli.models.request import ModelRequest
    from modelscope_cli.records.diff import DiffRecord

DIFFERENT = 1
_B_SETTINGS = ("weights", "checkpoint", "device", "dtype", "mode", "seed")


def diff(
    a: Annotated[
        str,
        typer.Argument(metavar="A", help="A model or a checkpoint file."),
    ],
    b: Annotated[
        str | None,
        typer.Argument(metavar="[B]", help="Another one; left out: A under the settings of --b-..."),
    ] = None,
    images: opt.ImagesArg = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            "--tolerance",
            "-t",
            metavar="T",
            help="Largest relative L2 that is no difference.",
            show_default="0 for tensors; for activations what torch.testing.assert_close allows the coarser "
            "dtype: 1.3e-6, 1e-3 float16, 1.6e-2 bfloat16",
        ),
    ] = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw the differences along the depth (.png .svg .pdf)."),
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Show what is the same, too.", rich_help_panel="Output")
    ] = False,
    hook: opt.HookOpt = None,
    mode: opt.ModeOpt = opt.Mode.auto,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="MODEL", help="What a checkpoint is run in.", rich_help_panel="Model"
        ),
    ] = None,
    weights: opt.WeightsOpt = "auto",
    checkpoint: opt.CheckpointOpt = None,
    strict: opt.StrictOpt = True,
    num_classes: opt.NumClassesOpt = None,
    model_arg: opt.ModelArgsOpt = None,
    device: opt.DeviceOpt = "auto",
    dtype: opt.DtypeOpt = "float32",
    seed: opt.SeedOpt = 0,
    b_weights: b_opt.BWeightsOpt = None,
    b_checkpoint: b_opt.BCheckpointOpt = None,
    b_device: b_opt.BDeviceOpt = None,
    b_dtype: b_opt.BDtypeOpt = None,
    b_mode: b_opt.BModeOpt = None,
    b_seed: b_opt.BSeedOpt = None,
    b_hook: b_opt.BHookOpt = None,
    offline: opt.OfflineOpt = False,
    input_shape: opt.InputShapeOpt = None,
    size: opt.SizeOpt = None,
    mean: opt.MeanOpt = None,
    std: opt.StdOpt = None,
    normalize: opt.NormalizeOpt = True,
    batch: opt.BatchOpt = None,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> int:
    """Compare two checkpoints, two models, or one model under two settings; exit with 1 where they differ.

    Without an input, the weights: what was added, removed, renamed, reshaped, retyped, changed. With images or
    --input-shape, what every layer gives, call by call, and the first one that diverges: both models run side
    by side, on the input as A wants it, with one activation of each in memory.

    Examples:

      modelscope diff samples/tiny_resnet.safetensors samples/sick.safetensors

      modelscope diff squeezenet1_1 samples/star.png -c samples/shapes_squeezenet1_1.safetensors --b-dtype bfloat16

      modelscope diff resnet18 resnet34 --weights none --input-shape 1,3,224,224 --plot depth.png
    """
    options = locals()
    from modelscope_cli.analysis.comparison.request import check_tolerance, read_names
    from modelscope_cli.commands.diff.table import diff_columns, diff_sheet
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    check_tolerance(tolerance)
    choose_columns(diff_columns(), columns)
    asked = read_names(a, b, images or (), model, has_shape=bool(input_shape))
    _refuse_idle(options, asked)
    ours, theirs, given = _requests(options, asked)
    if plot is not None:
        from modelscope_cli.report import canvas

        canvas.check_figure(plot)
    if asked.is_run:
        assert ours is not None
        assert theirs is not None
        assert given is not None
        record = _run_both(options, ours, theirs, given)
    else:
        record = _compare_weights(options, asked, ours, theirs)
    if plot is not None:
        from modelscope_cli.commands.diff.pictures import save_divergence

        save_divergence(record, plot)
        _console.note(f"wrote {plot}")
    emit(where, diff_sheet(record, columns, show_all=show_all), record.to_dict())
    return 0 if record.is_same else DIFFERENT


def _refuse_idle(options: dict[str, Any], asked: "DiffRequest") -> None:
    """Refuse what would have no effect: what is typed is obeyed or an error."""
    from modelscope_cli.analysis.comparison.request import refuse_given

    setting = {f"--b-{name}": options[f"b_{name}"] for name in (*_B_SETTINGS, "hook")}
    if asked.is_left_out and all(value is None for value in setting.values()):
        message = f"there is nothing to compare '{options['a']}' with"
        raise UsageError(
            message, f"modelscope diff {options['a']} B, or a setting such as --b-dtype bfloat16"
        )
    if not asked.is_run:
        running = {
            **{"--mode": _unless(options["mode"], opt.Mode.auto), "--b-mode": options["b_mode"]},
            **{"--hook": options["hook"], "--b-hook": options["b_hook"]},
            **{f"--{name}": options[name] for name in ("layer", "exclude", "size", "mean", "std", "batch")},
            "--no-normalize": not options["normalize"],
        }
        refuse_given(running, "is for a run, and there is no input to run on", "--input-shape 1,3,224,224")
    usual = {"--device": "auto", "--dtype": "float32", "--weights": "auto"}
    ours = {option: _unless(options[option[2:]], default) for option, default in usual.items()}
    reason = "is a setting of models, and checkpoints without one are compared as they are"
    if asked.b.model is None:
        refuse_given(setting, reason, "--model NAME")
        if asked.a.model is None:
            refuse_given({**ours, "--checkpoint": options["checkpoint"]}, reason, "--model NAME")


def _unless(value: object, default: object) -> object:
    return None if value == default else value


def _requests(
    options: dict[str, Any], asked: "DiffRequest"
) -> "tuple[ModelRequest | None, ModelRequest | None, InputRequest | None]":
    """Return what to load for A and for B, None for a checkpoint whose tensors are compared, and the input."""
    from modelscope_cli.analysis.comparison.request import request_b
    from modelscope_cli.models.request import check_request

    option = options["checkpoint"]
    base = asked.a if asked.a.model else asked.b
    if base.model is None:
        return None, None, None
    if option and asked.a.checkpoint:
        message = f"'{asked.a.checkpoint}' and '--checkpoint {option}' are two checkpoints for A"
        raise UsageError(message, f"leave out --checkpoint {option}")
    named = {"model": base.model, "checkpoint": base.checkpoint or option, "images": asked.files}
    ours, given = read_options({**options, **named})
    if asked.b.model is None:
        return ours, None, given
    own = {name: options[f"b_{name}"] for name in _B_SETTINGS if name != "mode"}
    theirs = request_b(ours, asked, option=option, **own)
    check_request(theirs)
    return ours if asked.a.model else None, theirs, given


def _compare_weights(
    options: dict[str, Any], asked: "DiffRequest", ours: "ModelRequest | None", theirs: "ModelRequest | None"
) -> "DiffRecord":
    """Compare two state dicts: of checkpoints, of models, or one of each."""
    from modelscope_cli.analysis.comparison.request import choose_tolerance
    from modelscope_cli.analysis.comparison.tensors import diff_tensors
    from modelscope_cli.records.diff import DiffRecord, count_up, first_divergence

    a = open_weights(ours, asked.a.checkpoint)
    b = open_weights(theirs, asked.b.checkpoint)
    tolerance, reason = choose_tolerance(options["tolerance"], None)
    rows, renamings = diff_tensors(
        a.tensors,
        b.tensors,
        tolerance,
        track=lambda names, total: _console.track("tensors", names, total),
    )
    if not any(row.status not in ("added", "removed") for row in rows):
        names = f"'{a.side.model.name}' and '{b.side.model.name}'"
        message = f"{names} have no tensor in common, by name or by value: there is nothing to compare"
        raise CannotRunError(message, "modelscope diff A B   of two versions of one model")
    return DiffRecord(
        run=head(a.side, None, (*a.warnings, *b.warnings)),
        b=b.side,
        mode=None,
        tolerance=tolerance,
        tolerance_reason=reason,
        first_divergence=first_divergence(rows),
        totals=count_up(rows),
        renamings=renamings,
        tensors=rows,
    )


def _run_both(
    options: dict[str, Any], ours: "ModelRequest", theirs: "ModelRequest", given: "InputRequest"
) -> "DiffRecord":
    """Run both on the same input and compare what their layers give."""
    from modelscope_cli.analysis.comparison.activations import Side, diff_activations
    from modelscope_cli.analysis.comparison.request import choose_tolerance
    from modelscope_cli.records.diff import DiffRecord, count_up, first_divergence

    modes = _modes(options)
    hooks = _hooks(options)
    loaded = load_both(ours, theirs)
    inputs = open_shared(given, loaded[0])
    sides = [
        Side(label, model, is_training=mode == opt.Mode.train, seed=request.seed)
        for label, model, mode, request in zip("AB", loaded, modes, (ours, theirs), strict=True)
    ]
    first = next(iter(inputs)).args
    bound = [
        bind(typed, side.loaded, side.place(first), side.seed)
        for side, typed in zip(sides, hooks, strict=True)
    ]
    sides = [
        replace(side, interventions=tuple(one.interventions)) for side, one in zip(sides, bound, strict=True)
    ]
    a, b = (describe(side.loaded, side.seed, mode) for side, mode in zip(sides, modes, strict=True))
    tolerance, reason = choose_tolerance(options["tolerance"], [a.dtype, b.dtype])
    rows, kept = diff_activations(
        sides[0],
        sides[1],
        inputs,
        tolerance,
        layers=tuple(options["layer"] or ()),
        exclude=tuple(options["exclude"] or ()),
        hooked={name for one in bound for hook in one.hooks for name in hook.target.names},
        track=lambda batches: _console.track("activations", batches, inputs.n_batches),
    )
    tell((), kept)
    (a_hooks, a_notices), (b_hooks, b_notices) = (conclude(one) for one in bound)
    warnings = (*loaded[0].warnings, *loaded[1].warnings, *inputs.warnings, *kept, *a_notices, *b_notices)
    return DiffRecord(
        run=head(a, inputs.info, warnings),
        b=b,
        mode=a.mode,
        tolerance=tolerance,
        tolerance_reason=reason,
        first_divergence=first_divergence(rows),
        totals=count_up(rows),
        images=inputs.n_images,
        layers=rows,
        hooks=a_hooks,
        b_hooks=b_hooks,
    )


def _hooks(options: dict[str, Any]) -> "tuple[list[ReadHook], list[ReadHook]]":
    """Read the hooks of A and of B, which are those of A where B has none of its own."""
    ours = read_hooks(options["hook"], "diff")
    if options["b_hook"]:
        return ours, read_hooks(options["b_hook"], "diff")
    for spec, _ in ours:
        if spec.action == "save":
            message = f"--hook '{spec}' would write the same file for A and for B"
            raise UsageError(message, f"--b-hook 'save=b.safetensors@{spec.pattern}'")
    return ours, read_hooks(options["hook"], "diff")


def _modes(options: dict[str, Any]) -> tuple[opt.Mode, opt.Mode]:
    a = opt.Mode.eval if options["mode"] == opt.Mode.auto else options["mode"]
    b = options["b_mode"] or a
    return a, opt.Mode.eval if b == opt.Mode.auto else b
