"""`modelscope attack`."""

from enum import StrEnum
from typing import Annotated

import typer

from modelscope_cli.analysis.interventions import read_hooks
from modelscope_cli.errors import UsageError
from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import bind, conclude, load, make_run, open_for, read_options, set_up, tell

_ATTACK = "Attack"


class Method(StrEnum):
    """How to look for a picture that fools the model."""

    fgsm = "fgsm"
    ifgsm = "ifgsm"
    pgd = "pgd"


class Norm(StrEnum):
    """In which distance the picture stays near."""

    linf = "linf"
    l2 = "l2"


def attack(
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="One picture, or '-' for standard input.")
    ],
    method: Annotated[
        Method,
        typer.Option(
            "--method",
            help="fgsm: one step along the sign of the gradient; ifgsm: several smaller ones; pgd: the same from "
            "a random start.",
            rich_help_panel=_ATTACK,
        ),
    ] = Method.pgd,
    norm: Annotated[
        Norm,
        typer.Option(
            "--norm",
            help="What epsilon bounds: linf, the change of every value; l2, the length of the whole change.",
            rich_help_panel=_ATTACK,
        ),
    ] = Norm.linf,
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            "-e",
            metavar="E",
            help="How far the picture may move, in pixels of 0..1.",
            show_default="8/255; 3 with --norm l2",
            rich_help_panel=_ATTACK,
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            min=1,
            metavar="N",
            help="Gradient steps.",
            show_default="ifgsm 10, pgd 20",
            rich_help_panel=_ATTACK,
        ),
    ] = None,
    step_size: Annotated[
        str | None,
        typer.Option(
            "--step-size",
            metavar="A",
            help="How far one goes.",
            show_default="ifgsm E/N, pgd 2.5 E/N",
            rich_help_panel=_ATTACK,
        ),
    ] = None,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", min=1, metavar="N", help="Random starts of pgd to try.", rich_help_panel=_ATTACK
        ),
    ] = 1,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="CLASS",
            help="A class index or label to be mistaken for; left out, any but the predicted one.",
            rich_help_panel=_ATTACK,
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
    """Change a picture as little as it takes to fool the model; save it and see whether it still does.

    The gradient is taken with respect to the pixels the model sees, before normalisation. The exit code is 0
    whether or not the model was fooled.

    Examples:

      modelscope attack samples/star.png -m squeezenet1_1 -c samples/shapes_squeezenet1_1.safetensors

      modelscope attack samples/harbour.jpg --weights none --method fgsm --epsilon 2/255

      modelscope attack photo.jpg -m resnet50 --norm l2 --epsilon 1 --steps 50 --restarts 3 --target goldfish
    """
    options = {**locals(), "input_shape": None}
    from modelscope_cli.analysis.attack.request import make_request
    from modelscope_cli.commands.attack.table import COLUMNS, attack_sheet
    from modelscope_cli.records.attack import AttackRecord
    from modelscope_cli.report.folder import OutputFolder, free_folder
    from modelscope_cli.report.sheet import choose_columns

    set_up(quiet, debug)
    where = destination(format, json, output)
    request, given = read_options(options)
    hooks = read_hooks(hook, "attack", has_backward=True)
    choose_columns(COLUMNS, columns)
    asked = make_request(
        method=method.value,
        norm=norm.value,
        epsilon=epsilon,
        steps=steps,
        step_size=step_size,
        restarts=restarts,
        target=target,
        seed=seed,
    )
    if len(images) > 1:
        raise UsageError(f"one picture at a time, not {len(images)}", f"modelscope attack {images[0]}")
    folder = OutputFolder(out or free_folder("attack", model), force)
    folder.check()

    from modelscope_cli.analysis.attack import on_image as pictures
    from modelscope_cli.commands.attack import folder as attack_report

    loaded = load(request)
    pictures.check_family(loaded)
    inputs = open_for(given, loaded)
    pictures.check_inputs(inputs, images[0])
    bound = bind(hooks, loaded, next(iter(inputs)).args, seed)
    with _console.progress("steps", asked.restarts * (asked.steps + 1)) as bar:
        attacked = pictures.attack_picture(
            loaded,
            inputs,
            asked,
            lambda: bar.advance(bar.task_ids[0]) if bar else None,
            bound.interventions,
        )
    hook_reports, hook_warnings = conclude(bound)
    with folder.open() as stage:
        read = pictures.save_and_ask(
            loaded, inputs, attacked.found, stage / attack_report.ADVERSARIAL, bound.interventions
        )
        warnings = pictures.notices(attacked, read, asked)
        tell((), warnings)
        record = AttackRecord(
            run=make_run(
                "attack",
                loaded,
                inputs.info,
                seed,
                (*loaded.warnings, *inputs.warnings, *hook_warnings, *warnings),
            ),
            image=images[0],
            out_dir=str(folder.path),
            files=attack_report.FILES,
            hooks=hook_reports,
            **pictures.describe(attacked, read, asked, loaded.categories),
        )
        attack_report.save_report(record, attacked.levels, read.levels, stage)
    _console.note(f"wrote {folder.path}")
    emit(where, attack_sheet(record, columns), record.to_dict())
