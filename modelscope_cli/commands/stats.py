"""`modelscope stats`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import check_plot, emit, save, save_plot

PLACE = 12  # in `modelscope --help`


@command
def stats(call: CommandCall) -> None:
    """Print statistics of every layer's output, over any number of images.

    Only finite values count; NaN and infinite ones are counted separately. A dead channel is zero at every position
    of every image. A column such as p50, p01 or p99.9 is an exact quantile, a value of the data; quantiles, and mad
    over several batches, read the images twice. In train mode the drift of every batch norm is shown: its batch
    statistics against the running ones. The table attention has the entropy of each head's weights.

    Image files are processed in blocks of --batch, which --out stores. Under torchrun all processes share them; the
    result is bit-identical for any number of processes, and after --resume. In train mode, and with --hook or
    --table attention, a single process does everything.

    Examples:

      modelscope stats resnet34 demo/harbour.jpg --weights none

      modelscope stats demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --layer type:ReLU --columns name,mean,p50,p99.9,zero,dead

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/sick.safetensors

      modelscope stats vit_b_32 demo/harbour.jpg -w none --table attention

      modelscope stats resnet34 demo/harbour.jpg -w none --hook 'zero[3,7]@conv1' --hook print@fc

      torchrun --nproc-per-node 2 -m modelscope_cli stats resnet18 'demo/shapes/*/*.jpg' -w none --batch 8
    """
    from modelscope_cli.records.reading import RUN
    from modelscope_cli.records.stats import COLUMN_OF_FIGURE
    from modelscope_cli.report.shared_tables import check_drift
    from modelscope_cli.report.stats.table import columns_of, stats_sheet

    where = call.begin(is_shared=True)
    model, inputs = call.subject()
    table = call["table"]
    if table == "batch-norm":
        check_drift(call["mode"] == "train")
    columns = columns_of(table, where.view)
    plot, out = call["plot"], call["out"]
    if plot is not None:
        check_plot(plot)
    needed = columns if columns is None or plot is None else (*columns, *COLUMN_OF_FIGURE.values())
    record = ms.stats(model, inputs, **call.keywords(), attention=table == "attention", columns=needed)
    if out is not None:
        record = save(record, out, has_content=(out / RUN).exists())
    if plot is not None:
        save_plot(record, plot)
    emit(where, stats_sheet(record, table, columns or ()), record)
