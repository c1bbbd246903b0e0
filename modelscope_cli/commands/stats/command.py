"""`modelscope stats`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit


@command
def stats(call: CommandCall) -> None:
    """Print statistics of every layer's output, over any number of images.

    Only finite values count; NaN and infinite ones are counted separately. A dead channel is zero at every position
    of every image. A column such as p50, p01 or p99.9 is an exact quantile, a value of the data; for it, and for
    mad with several batches, the images are read twice. In train mode the drift of every batch norm is shown: its
    batch's statistics beside the running ones. The table attention has the entropy of each head's weights.

    Image files are cut into blocks of --batch. Under torchrun all processes work on them, and --out keeps them: the
    bits are the same for any number of processes, also after a break. In train mode, with --correlation, --hook or
    the table attention, one process does all of it in one go.

    Examples:

      modelscope stats resnet34 demo/harbour.jpg --weights none

      modelscope stats demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --layer type:ReLU --columns name,mean,p50,p99.9,zero,dead

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope stats vit_b_32 demo/harbour.jpg -w none --table attention

      modelscope stats resnet34 demo/harbour.jpg -w none --hook 'zero[3,7]@conv1' --hook print@fc

      torchrun --nproc-per-node 2 -m modelscope_cli stats resnet18 'demo/shapes/*/*.jpg' -w none --batch 8
    """
    from modelscope_cli.commands.stats.table import columns_of, stats_sheet
    from modelscope_cli.report.shared_tables import check_drift

    where = call.begin(is_shared=True)
    model, inputs = call.subject()
    table = call["table"]
    if table == "batch-norm":
        check_drift(call["mode"] == "train")
    columns = columns_of(table, where.view)
    figures = call.folder(model.model) if call["correlation"] else None
    record = ms.stats(
        model,
        inputs,
        **{"out": figures, **call.keywords()},
        attention=table == "attention",
        columns=columns,
    )
    emit(where, stats_sheet(record, table, columns or ()), record)
