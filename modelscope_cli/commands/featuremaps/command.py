"""`modelscope featuremaps`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from modelscope_cli.analysis.interventions import read_hooks
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import bind, conclude, load, make_run, open_for, read_options, set_up, tell


class Scale(StrEnum):
    """Over what the colours span."""

    channel = "channel"
    layer = "layer"


def featuremaps(
    images: opt.ImagesArg = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    channels: Annotated[
        int, typer.Option("--channels", min=1, metavar="N", help="At most this many, evenly chosen.")
    ] = 64,
    top: Annotated[
        bool, typer.Option("--top", help="Choose the channels with the largest mean |activation|.")
    ] = False,
    scale: Annotated[
        Scale, typer.Option("--scale", help="Colours span each channel's own range, or the layer's.")
    ] = Scale.channel,
    cmap: Annotated[
        str, typer.Option("--cmap", metavar="NAME", help="Any matplotlib colour map.")
    ] = "viridis",
    cell: Annotated[
        int | None,
        typer.Option(
            "--cell",
            min=1,
            max=2048,
            metavar="PIXELS",
            help="Long side of a map.",
            show_default="at least 96",
        ),
    ] = None,
    overlay: Annotated[bool, typer.Option("--overlay", help="Blend the maps over the picture.")] = False,
    save_tensors: Annotated[
        Path | None,
        typer.Option("--save-tensors", metavar="FILE", help="Save the whole outputs as .safetensors."),
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
    out: opt.OutDirOpt = None,
    force: opt.ForceOpt = False,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Save what the layers see in a picture: one grid a layer, a contact sheet, report.json.

    The forward stops after the last layer that was asked for. Gray cells are channels of a single value.

    Examples:

      modelscope featuremaps samples/harbour.jpg --layer conv

      modelscope featuremaps photo.jpg -l conv@16 --top --channels 16 --overlay

      modelscope featuremaps photo.jpg -m vit_b_16 -l 'encoder.layers.*.mlp' --cmap magma
    """
    options = locals()
    from modelscope_cli.commands.featuremaps.table import COLUMNS, featuremaps_sheet
    from modelscope_cli.records.featuremaps import FeatureMapsRecord
    from modelscope_cli.report.folder import OutputFolder, check_file, free_folder, write_text
    from modelscope_cli.report.json import render_json
    from modelscope_cli.report.palette import make_palette
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "featuremaps")
    make_palette(cmap)
    choose_columns(COLUMNS, columns)
    if len(given.files) > 1:
        raise UsageError(
            f"one picture at a time, not {len(given.files)}", f"modelscope featuremaps {given.files[0]}"
        )
    folder = OutputFolder(out or free_folder("featuremaps", model), force)
    folder.check()
    if save_tensors is not None:
        check_file(save_tensors)

    from modelscope_cli.analysis.activations.maps import capture_maps
    from modelscope_cli.hooks.selection import select, uncalled
    from modelscope_cli.report import gallery

    loaded = load(request)
    inputs = open_for(given, loaded)
    batch = next(iter(inputs))
    if inputs.n_images > 1 and given.files:
        raise UsageError(f"one picture at a time, '{given.files[0]}' has {inputs.n_images}", "give one file")
    picture = batch.pictures[0] if batch.pictures else None
    if overlay and picture is None:
        raise UsageError("--overlay needs a picture to lie over", "leave out --overlay")
    image_size = (picture.shape[-2], picture.shape[-1]) if picture is not None else None
    selection = select(
        loaded.module, layer or (), exclude or (), batch.args, is_feedforward=loaded.is_feedforward
    )
    tell(selection.notes, ())
    bound = bind(hooks, loaded, batch.args, seed)
    exhibits = capture_maps(
        loaded.module,
        batch.args,
        selection,
        image_size=image_size,
        n_channels=channels,
        is_top=top,
        interventions=bound.interventions,
    )
    hook_reports, hook_warnings = conclude(bound)
    if not any(exhibit.maps is not None for exhibit in exhibits):
        raise CannotRunError(
            "no selected layer gave anything that can be drawn", f"modelscope summary {model}"
        )
    look = gallery.Look(scale.value, cmap, cell, picture if overlay else None)
    warnings = (*loaded.warnings, *inputs.warnings, *hook_warnings)
    with folder.open() as stage:
        record = FeatureMapsRecord(
            run=make_run("featuremaps", loaded, inputs.info, seed, warnings),
            maps=tuple(gallery.save_gallery(exhibits, look, stage)),
            contact_sheet=gallery.CONTACT_SHEET,
            out_dir=str(folder.path),
            tensors=str(save_tensors) if save_tensors else None,
            not_called=uncalled(loaded.module, selection, [exhibit.record.name for exhibit in exhibits]),
            hooks=hook_reports,
        )
        write_text(stage / "report.json", render_json(record.to_dict()))
        if save_tensors is not None:
            gallery.save_tensors(exhibits, save_tensors)
    if save_tensors is not None:
        _console.note(f"wrote {save_tensors}")
    _console.note(f"wrote {folder.path} ({sum(row.file is not None for row in record.maps)} grids)")
    emit(where, featuremaps_sheet(record, columns), record.to_dict())
