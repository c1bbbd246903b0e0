"""`modelscope train`."""

from typing import Annotated

import modelscope_cli as ms
from modelscope_cli.commands.train.options import HOW, LEARNER, HowOptions, OwnLearnerOptions
from modelscope_cli.records.bounds import LONGEST_RUN
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import training as shared
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.numbers import whole
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.verdict import FailOnOpt, is_failed


@spread
def train(
    given: shared.GivenOptions = shared.GIVEN,
    drawn: shared.DrawnOptions = shared.DRAWN,
    how: HowOptions = HOW,
    change: shared.ChangeOptions = shared.CHANGES,
    learner: OwnLearnerOptions = LEARNER,
    every: Annotated[
        int | None,
        whole(
            "--every",
            most=LONGEST_RUN,
            metavar="K",
            min=1,
            help="Record every K-th step, instead of about 200 steps.",
            rich_help_panel="Output",
        ),
    ] = None,
    save_every: Annotated[
        int | None,
        whole(
            "--save-every",
            most=LONGEST_RUN,
            metavar="N",
            min=1,
            help="Also save the weights after every N steps.",
            rich_help_panel="Output",
        ),
    ] = None,
    fail_on: FailOnOpt = None,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> int:
    """Train a classifier for a few steps and show what happens inside it.

    Prints every layer as it was at the first and at the last step, or, with --vary, one row per variant; all of
    them see the same images in the same order. A tenth of the images are kept for validation after each epoch.

    Examples:

      modelscope train demo/tiny_resnet.py:TinyResNet --size 48 --steps 60

      modelscope train demo/tiny_resnet.py:TinyResNet --vary init=default,lsuv --vary norm-layer=batch,none
        --steps 40

      modelscope train demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --train-only head --schedule
        one-cycle --steps 60
    """  # fmt: skip
    from modelscope_cli.commands.train.table import train_columns, train_sheet
    from modelscope_cli.report.folder import free_folder

    where = output.begin()
    model, data = given.take("train", learner.model)
    request = learner.request(model)
    where.view.check(train_columns(bool(how.vary)))
    record = ms.train(
        request,
        data,
        loaders=given.loaders,
        **said(drawn, how, change),
        every=every,
        save_every=save_every,
        out=folder.out or free_folder("train", model),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, train_sheet(record), record)
    return int(is_failed(record.findings, fail_on))
