"""`modelscope prune`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit, save

PLACE = 32  # in `modelscope --help`


@command
def prune(call: CommandCall) -> None:
    """Prune weights, and measure how far the predictions drift.

    The masks are those of torch.nn.utils.prune, applied by hooks while the model runs: its parameters and its file
    do not change. --layer includes all sublayers. Biases and batch norms are not pruned.

    Examples:

      modelscope prune demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope prune demo/tiny_resnet.py:TinyResNet 'demo/shapes/*/*.jpg' -c demo/tiny_resnet.safetensors
        --amount 0.5 --global --save-weights pruned.safetensors

      modelscope prune resnet18 demo/harbour.jpg --weights none --layer conv --by-channel --method l2
    """
    from modelscope_cli.analysis.pruning.request import make_request
    from modelscope_cli.report.prune.table import prune_columns, prune_sheet

    where = call.begin()
    model, inputs = call.subject()
    where.view.check(prune_columns(call["table"]))
    make_request(  # refused before torch is imported
        **{name: call[name] for name in ("amount", "method", "by_channel", "sweep")},
        is_global=call["global_"],
        seed=model.seed,
        has_images=bool(inputs.files),
    )
    out = call.folder(model.model)
    record = save(ms.prune(model, inputs, **call.keywords()), out)
    emit(where, prune_sheet(record, call["table"]), record)
