"""`modelscope lrfind`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.lrfind.options import SWEEP, SweepOptions
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell import training as shared
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.output import emit


@spread
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
    drawn: shared.DrawnOptions = shared.DRAWN,
    sweep: SweepOptions = SWEEP,
    batch: shared.BatchOpt = 32,
    optimizer: shared.OptimizerOpt = "momentum",
    label_smoothing: shared.SmoothingOpt = 0.0,
    weight_decay: shared.DecayOpt = 0.0,
    change: shared.ChangeOptions = shared.CHANGES,
    named: shared.NamedOptions = shared.NAMED,
    num_classes: opt.NumClassesOpt = None,
    built: shared.BuiltOptions = shared.BUILT,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Sweep the learning rate while training, and suggest where to set it; everything is put back.

    The hashes of weights, buffers, optimizer and random state before and after are printed as the proof.

    Examples:

      modelscope lrfind -m samples/tiny_resnet.py:TinyResNet --size 48

      modelscope lrfind --data flowers/ -m resnet18 -w DEFAULT --train-only fc --optimizer adamw --to 0.1

      modelscope lrfind --loaders train.py:loaders -m train.py:Net --linear --from 0.001 --to 0.5
    """
    from modelscope_cli.commands.lrfind.table import LRFIND_COLUMNS, lrfind_sheet
    from modelscope_cli.report.folder import free_folder
    from modelscope_cli.report.sheet import choose_columns

    where = output.begin()
    request = shared.request_of(named, built, num_classes)
    choose_columns(LRFIND_COLUMNS, output.columns)
    record = ms.lrfind(
        request,
        data,
        loaders=loaders,
        pictures=drawn.pictures,
        size=drawn.size,
        low=sweep.low,
        high=sweep.high,
        steps=sweep.steps,
        linear=sweep.linear,
        smoothing=sweep.smoothing,
        diverged=sweep.diverged,
        batch=batch,
        optimizer=optimizer,
        label_smoothing=label_smoothing,
        weight_decay=weight_decay,
        init=change.init,
        activation=change.activation,
        leak=change.leak,
        subtract=change.subtract,
        maximum=change.maximum,
        norm=change.norm,
        freeze=change.freeze or (),
        train_only=change.train_only or (),
        out=folder.out or free_folder("lrfind", named.model),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, lrfind_sheet(record, output.columns), record.to_dict())
