"""`modelscope grads`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit, save

PLACE = 22  # in `modelscope --help`


@command
def grads(call: CommandCall) -> None:
    """Run a forward and a backward pass, and print and plot the gradients.

    Each image is a pass of its own, unless --batch sets another size; of several passes the mean gradient and its
    noise are shown. Gradients are computed, inspected and discarded; nothing is trained.

    Examples:

      modelscope grads resnet34 demo/harbour.jpg --weights none --clip 1.0

      modelscope grads demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors -t star

      modelscope grads resnet18 --weights none --train-only fc --num-classes 10 --mode train --no-save

      modelscope grads resnet34 demo/harbour.jpg -w none --hook 'grad:clamp=-1,1@conv' --no-save
    """
    from modelscope_cli.analysis.gradients.request import has_own_loss
    from modelscope_cli.report.grads.table import grads_columns, grads_sheet
    from modelscope_cli.report.shared_tables import check_drift

    where = call.begin()
    model, inputs = call.subject()
    table, mode = call["table"], call["mode"]
    where.view.check(grads_columns(table))
    is_saved = call.check_saving()
    if table == "batch-norm":
        check_drift(mode == "train" or (mode == "auto" and has_own_loss(model, call["loss"])))
    out = call.folder(model.model) if is_saved else None
    record = ms.grads(model, inputs, **call.keywords())
    if out is not None:
        record = save(record, out)
    emit(where, grads_sheet(record, table), record)
