"""`modelscope lrfind`."""

import modelscope_cli as ms
from modelscope_cli.commands.lrfind.options import SWEEP, SweepOptions
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import training as shared
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.output import emit


@spread
def lrfind(
    given: shared.GivenOptions = shared.GIVEN,
    drawn: shared.DrawnOptions = shared.DRAWN,
    sweep: SweepOptions = SWEEP,
    batch: shared.BatchOpt = 32,
    optimizer: shared.OptimizerOpt = "momentum",
    label_smoothing: shared.SmoothingOpt = 0.0,
    weight_decay: shared.DecayOpt = 0.0,
    change: shared.ChangeOptions = shared.CHANGES,
    learner: shared.LearnerOptions = shared.LEARNER,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Sweep the learning rate while training, suggest one, and put everything back.

    The hashes of weights, buffers, optimizer and random state before and after are printed as the proof.

    Examples:

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48

      modelscope lrfind demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --batch 8 --optimizer adamw --to
        0.1

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48 --linear --from 0.001 --to 0.5
    """
    from modelscope_cli.commands.lrfind.table import COLUMNS, lrfind_sheet
    from modelscope_cli.report.folder import free_folder

    where = output.begin()
    model, data = given.take("lrfind", learner.model)
    request = learner.request(model)
    where.view.check(COLUMNS)
    record = ms.lrfind(
        request,
        data,
        loaders=given.loaders,
        **said(drawn, sweep, change),
        batch=batch,
        optimizer=optimizer,
        label_smoothing=label_smoothing,
        weight_decay=weight_decay,
        out=folder.out or free_folder("lrfind", model),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, lrfind_sheet(record), record)
