"""`modelscope train`."""

import modelscope_cli as ms
from modelscope_cli.records.check import is_failed
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

PLACE = 23  # in `modelscope --help`


@command
def train(call: CommandCall) -> int:
    """Train a classifier for a few steps and show what happens inside it.

    Prints every layer at the first and at the last step or, with --vary, one row per variant; all variants see the
    same images in the same order. A tenth of the images is used for validation, after each epoch.

    Examples:

      modelscope train demo/tiny_resnet.py:TinyResNet --size 48 --steps 60

      modelscope train demo/tiny_resnet.py:TinyResNet --vary init=default,lsuv --vary norm-layer=batch,none
        --steps 40

      modelscope train demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --train-only head --schedule
        one-cycle --steps 60
    """
    from modelscope_cli.output_files import free_folder
    from modelscope_cli.report.train.table import train_columns, train_sheet

    where = call.begin()
    model, data = call.learner()
    where.view.check(train_columns(bool(call["vary"])))
    out = call["out"] or free_folder("train", model.model)
    record = ms.train(model, data, **{**call.keywords(), "out": out})
    emit(where, train_sheet(record), record)
    return int(is_failed(record.findings, call["fail_on"]))
