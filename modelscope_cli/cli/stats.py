"""`modelscope stats`."""

from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.cli import _console
from modelscope_cli.cli import _options as opt
from modelscope_cli.cli._emit import destination, emit
from modelscope_cli.cli._hooks import bind, conclude, read_hooks
from modelscope_cli.cli._run import load, make_run, open_for, read_options, set_up, tell
from modelscope_cli.errors import UsageError


def stats(
    images: opt.ImagesArg = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    near_zero: Annotated[
        float,
        typer.Option("--near-zero", min=0.0, metavar="T", help="|x| below this counts as near zero."),
    ] = 0.05,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot", metavar="FILE", help="Save one figure of all the distributions (.png .svg .pdf)."
        ),
    ] = None,
    correlation: Annotated[
        bool,
        typer.Option(
            "--correlation", help="Correlate the channels of each --layer; a picture each, in --out."
        ),
    ] = False,
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
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Print statistics of what every layer puts out, over any number of images.

    Only finite values count; NaN and infinite ones are counted apart. A dead channel is zero at every position
    of every image. Nothing is kept in memory but the sums.

    Examples:

      modelscope stats samples/harbour.jpg --model resnet34 --weights none

      modelscope stats 'photos/*.jpg' --layer type:ReLU --columns name,mean,std,zero,dead

      modelscope stats samples/star.png -m samples/tiny_resnet.py:TinyResNet -c samples/sick.safetensors

      modelscope stats samples/harbour.jpg -m resnet34 -w none --hook 'zero[3,7]@conv1' --hook print@fc
    """
    options = locals()
    from modelscope_cli.records import StatsRecord
    from modelscope_cli.report.folder import OutputFolder, check_file, free_folder, write_text
    from modelscope_cli.report.json import render_json
    from modelscope_cli.report.stats_sheet import FIGURES, needed_figures, stats_sheet

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "stats")
    figures = needed_figures(columns) if plot is None else frozenset(FIGURES)
    if correlation and not layer:
        raise UsageError("--correlation needs to know which layers", "--correlation --layer conv")
    if out and not correlation:
        raise UsageError(
            f"--out '{out}' is for the pictures of --correlation", "--plot FILE or --output FILE"
        )
    folder = OutputFolder(out or free_folder("stats", model), force) if correlation else None
    if folder is not None:
        folder.check()

    from modelscope_cli.analysis.activations import observe_activations, to_row
    from modelscope_cli.analysis.moments import Wanted
    from modelscope_cli.hooks.selection import select, uncalled
    from modelscope_cli.report import plots

    if plot is not None:
        plots.check_suffix(plot)
        check_file(plot)
    loaded = load(request)
    inputs = open_for(given, loaded)
    first = next(iter(inputs)).args
    selection = select(loaded.module, layer or (), exclude or (), first, is_feedforward=loaded.is_feedforward)
    tell(selection.notes, ())
    bound = bind(hooks, loaded, first, seed)
    activations = observe_activations(
        loaded.module,
        inputs,
        selection,
        Wanted(threshold=near_zero, **{figure: figure in figures for figure in FIGURES}),
        with_correlation=correlation,
        interventions=bound.interventions,
        track=lambda batches, what: _console.track(what, batches, inputs.n_batches),
    )
    rows = tuple(to_row(activation) for activation in activations)
    hook_reports, hook_warnings = conclude(bound)

    def record() -> StatsRecord:
        warnings = (*loaded.warnings, *inputs.warnings, *hook_warnings)
        return StatsRecord(
            run=make_run("stats", loaded, inputs.info, seed, warnings),
            layers=rows,
            images=inputs.n_images,
            near_zero=near_zero,
            not_called=uncalled(loaded.module, selection, [row.name for row in rows]),
            hooks=hook_reports,
        )

    if folder is not None:
        from modelscope_cli.report.correlations import save_correlations

        with folder.open() as stage:
            rows = save_correlations(rows, [activation.correlation() for activation in activations], stage)
            write_text(stage / "report.json", render_json(record().to_dict()))
        _console.note(f"wrote {folder.path}")
    result = record()
    if plot is not None:
        plots.save_distributions(result, plot)
        _console.note(f"wrote {plot}")
    emit(where, stats_sheet(result, columns), result.to_dict())
