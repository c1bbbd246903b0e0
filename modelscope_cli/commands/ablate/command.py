"""`modelscope ablate`."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.analysis.interventions import read_hooks
from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import bind, conclude, load, make_run, open_for, read_options, set_up, tell


class How(StrEnum):
    """What stands in for what is taken out."""

    zero = "zero"
    mean = "mean"
    shuffle = "shuffle"


def ablate(
    images: opt.ImagesArg = None,
    layer: opt.LayersOpt = None,
    exclude: opt.ExcludeOpt = None,
    channels: Annotated[
        bool, typer.Option("--channels", help="Take out the channels of each --layer one by one.")
    ] = False,
    how: Annotated[
        How,
        typer.Option(
            "--how",
            help="What stands in: zeros; each channel's mean over its positions; or the same values at "
            "shuffled positions (seeded).",
        ),
    ] = How.zero,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="CLASS",
            help="Whose logit to follow: a class index, a label, or predicted.",
        ),
    ] = "predicted",
    top: Annotated[
        int | None, typer.Option("--top", min=1, metavar="N", help="Print only the N largest effects.")
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
    save: Annotated[
        bool,
        typer.Option("--save/--no-save", help="Write the report, or only print.", rich_help_panel="Output"),
    ] = True,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """Take out the layers of a classifier one by one, and say which of them carry the decision.

    A forward hook replaces what a layer gives; what follows is computed again, what came before is not. Sorted by
    how far the answer moves (KL divergence); over several images all figures are means.

    Examples:

      modelscope ablate samples/star.png -m squeezenet1_1 -c samples/shapes_squeezenet1_1.safetensors -l conv

      modelscope ablate samples/star.png -m samples/tiny_resnet.py:TinyResNet -w none -l block3.conv2 --channels

      modelscope ablate 'photos/*.jpg' --how shuffle --target 281 --top 10 --no-save
    """
    options = locals()
    from modelscope_cli.commands.ablate.table import ablate_columns, ablate_sheet
    from modelscope_cli.records.ablate import AblateRecord
    from modelscope_cli.report.folder import OutputFolder, free_folder
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "ablate")
    choose_columns(ablate_columns(), columns)
    if channels and not layer:
        raise UsageError("--channels needs to know of which layers", "--channels --layer conv@-1")
    if (out or force) and not save:
        raise UsageError("--no-save writes no folder", "leave out --no-save, or --out and --force")
    folder = OutputFolder(out or free_folder("ablate", model), force) if save else None
    if folder is not None:
        folder.check()

    from modelscope_cli.analysis.ablation.ablating import AblationRequest, ablate
    from modelscope_cli.hooks.selection import Selection, select, uncalled

    loaded = load(request)
    inputs = open_for(given, loaded)
    first = next(iter(inputs))
    selection = select(
        loaded.module, layer or (), exclude or (), first.args, is_feedforward=loaded.is_feedforward
    )
    tell(selection.notes, ())
    bound = bind(hooks, loaded, first.args, seed)
    ablations = ablate(
        loaded,
        inputs,
        selection,
        AblationRequest(how.value, channels, target, seed),
        interventions=bound.interventions,
        track=lambda passes, what, total: _console.track(what, passes, total),
    )
    if ablations.why_whole:
        _console.note(f"every pass runs the whole model, which {ablations.why_whole}")
    tell((), ablations.warnings)
    hook_reports, hook_warnings = conclude(bound)
    warnings = (*loaded.warnings, *inputs.warnings, *ablations.warnings, *hook_warnings)
    record = AblateRecord(
        run=make_run("ablate", loaded, inputs.info, seed, warnings),
        baseline=ablations.baseline,
        rows=ablations.rows,
        mode=how.value,
        images=len(ablations.baseline.predictions),
        classes=ablations.classes,
        not_called=uncalled(loaded.module, selection, ablations.called),
        hooks=hook_reports,
    )
    if folder is not None:
        from modelscope_cli.analysis.activations.maps import capture_maps
        from modelscope_cli.commands.ablate.folder import files_for, save_report
        from modelscope_cli.commands.ablate.gallery import rows_shown

        picture = first.pictures[0] if first.pictures else None
        maps = {}
        if picture is not None:
            calls = Selection(wanted=frozenset((row.name, row.call) for row in rows_shown(record)))
            exhibits = capture_maps(
                loaded.module, first.args, calls, image_size=(picture.shape[1], picture.shape[2])
            )
            # Of several outputs of a call the first, which is the one whose channels were taken out.
            maps = {
                (e.record.name, e.record.call): e.maps.to("cpu") for e in exhibits[::-1] if e.maps is not None
            }
        record = replace(record, out_dir=str(folder.path), files=files_for(picture))
        with folder.open() as stage:
            save_report(record, stage, picture, maps)
        _console.note(f"wrote {folder.path}")
    emit(where, ablate_sheet(record, columns, top), record.to_dict())
