"""`modelscope ablate`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit, save

PLACE = 31  # in `modelscope --help`


@command
def ablate(call: CommandCall) -> None:
    """Ablate the layers of a model one by one, and measure how the prediction changes.

    A forward hook replaces a layer's output; only the layers after it are computed again.
    Rows are sorted by the change of the prediction (KL divergence); over several images all numbers are means.

    Examples:

      modelscope ablate demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope ablate demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors -l
        block3.conv2 --by-channel

      modelscope ablate demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --method shuffle --target star --no-save
    """
    from modelscope_cli.report.ablate.table import ablate_columns, ablate_sheet

    where = call.begin()
    model, inputs = call.subject()
    where.view.check(ablate_columns())
    out = call.folder(model.model) if call.check_saving() else None
    record = ms.ablate(model, inputs, **call.keywords())
    if out is not None:
        record = save(record, out)
    emit(where, ablate_sheet(record), record)
