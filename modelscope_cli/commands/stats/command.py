"""`modelscope stats`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.hooks import bind, conclude, read_hooks
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import fit_batch, load, make_run, open_for, read_options, set_up, tell


class Table(StrEnum):
    """Which of the tables is printed."""

    layers = "layers"
    batch_norm = "batch-norm"


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
    mode: opt.ModeOpt = opt.Mode.auto,
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
        Table,
        typer.Option(
            "--table", help="Which table to print; batch-norm needs --mode train.", rich_help_panel="Output"
        ),
    ] = Table.layers,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Print statistics of what every layer puts out, over any number of images.

    Only finite values count; NaN and infinite ones are counted apart. A dead channel is zero at every position
    of every image. Nothing is kept in memory but the sums. In train mode the drift of every batch norm is shown:
    its batch's statistics beside the running ones.

    Examples:

      modelscope stats samples/harbour.jpg --model resnet34 --weights none

      modelscope stats 'photos/*.jpg' --layer type:ReLU --columns name,mean,std,zero,dead

      modelscope stats samples/star.png -m samples/tiny_resnet.py:TinyResNet -c samples/sick.safetensors

      modelscope stats samples/harbour.jpg -m resnet34 -w none --hook 'zero[3,7]@conv1' --hook print@fc
    """
    options = locals()
    from modelscope_cli.commands.stats.table import FIGURES, needed_figures, stats_sheet
    from modelscope_cli.records.stats import StatsRecord
    from modelscope_cli.report.batch_norm_table import COLUMNS as BATCH_NORM_COLUMNS
    from modelscope_cli.report.batch_norm_table import check_drift
    from modelscope_cli.report.folder import OutputFolder, free_folder, write_text
    from modelscope_cli.report.json import render_json
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "stats")
    is_training = mode == opt.Mode.train
    if table == Table.batch_norm:
        check_drift(is_training)
        choose_columns(BATCH_NORM_COLUMNS, columns)
    figures = needed_figures(columns) if plot is None and table == Table.layers else frozenset(FIGURES)
    _check_pictures(correlation, layer, out, plot)
    folder = OutputFolder(out or free_folder("stats", model), force) if correlation else None
    if folder is not None:
        folder.check()

    from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
    from modelscope_cli.analysis.activations.observer import observe_activations, to_row
    from modelscope_cli.analysis.statistics.moments import Wanted
    from modelscope_cli.commands.stats import pictures as plots
    from modelscope_cli.hooks.selection import select, uncalled

    loaded = load(request)
    inputs = open_for(fit_batch(given, is_training), loaded)
    first = next(iter(inputs)).args
    selection = select(loaded.module, layer or (), exclude or (), first, is_feedforward=loaded.is_feedforward)
    tell(selection.notes, ())
    bound = bind(hooks, loaded, first, seed)
    batch_norms = BatchNormObserver() if is_training else None
    activations = observe_activations(
        loaded.module,
        inputs,
        selection,
        Wanted(threshold=near_zero, **{figure: figure in figures for figure in FIGURES}),
        with_correlation=correlation,
        interventions=bound.interventions,
        batch_norms=batch_norms,
        family=loaded.family,
        track=lambda batches, what: _console.track(what, batches, inputs.n_batches),
    )
    rows = tuple(to_row(activation) for activation in activations)
    hook_reports, hook_warnings = conclude(bound)
    warnings = (*loaded.warnings, *inputs.warnings, *hook_warnings)

    def record() -> StatsRecord:
        return StatsRecord(
            run=make_run("stats", loaded, inputs.info, seed, warnings),
            layers=rows,
            images=inputs.n_images,
            near_zero=near_zero,
            not_called=uncalled(loaded.module, selection, [row.name for row in rows]),
            hooks=hook_reports,
            mode="train" if is_training else "eval",
            batch_norm=batch_norms.rows() if batch_norms else (),
        )

    if folder is not None:
        from modelscope_cli.commands.stats.correlations import save_correlations

        with folder.open() as stage:
            rows = save_correlations(rows, [activation.correlation() for activation in activations], stage)
            write_text(stage / "report.json", render_json(record().to_dict()))
        _console.note(f"wrote {folder.path}")
    result = record()
    if plot is not None:
        plots.save_distributions(result, plot)
        _console.note(f"wrote {plot}")
    emit(where, stats_sheet(result, columns, table), result.to_dict())


def _check_pictures(correlation: bool, layers: list[str] | None, out: Path | None, plot: Path | None) -> None:
    from modelscope_cli.commands.stats.pictures import check_suffix
    from modelscope_cli.report.folder import check_file

    if correlation and not layers:
        raise UsageError("--correlation needs to know which layers", "--correlation --layer conv")
    if out and not correlation:
        message = f"--out '{out}' is for the pictures of --correlation"
        raise UsageError(message, "--plot FILE or --output FILE")
    if plot is not None:
        check_suffix(plot)
        check_file(plot)
