"""`modelscope lrfind`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit, save

PLACE = 24  # in `modelscope --help`


@command
def lrfind(call: CommandCall) -> None:
    """Sweep the learning rate while training, suggest one, and restore everything.

    Weights, buffers, optimizer and random state are hashed before and after, to verify that they are restored.

    Examples:

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48

      modelscope lrfind demo/tiny_resnet.py:TinyResNet demo/shapes --size 48 --batch 8 --optimizer adamw --to
        0.1

      modelscope lrfind demo/tiny_resnet.py:TinyResNet --size 48 --from 0.001 --to 0.5
    """
    from modelscope_cli.report.lrfind.table import COLUMNS, lrfind_sheet

    where = call.begin()
    model, data = call.learner()
    where.view.check(COLUMNS)
    out = call.folder(model.model)
    record = save(ms.lrfind(model, data, **call.keywords()), out)
    emit(where, lrfind_sheet(record), record)
