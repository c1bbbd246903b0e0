"""`modelscope verify`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

NOT_PASSED = 1


@command
def verify(call: CommandCall) -> int:
    """Recompute a random sample of a stored result, and exit with 1 if it differs.

    For results that --out stored in blocks: stats, predict, explain and check over many images. Run it in the same
    folder as the command, so that it finds the model and the images. On the same kind of machine all bits have to
    be equal, otherwise the numbers to within 0.1 %. The totals of the report have to match its blocks.

    Examples:

      modelscope stats demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors --batch 8
        --out activations

      modelscope verify activations --sample 20

      modelscope verify activations/report.json --json
    """
    from modelscope_cli.commands.verify.table import COLUMNS, verify_sheet

    where = call.begin()
    where.view.check(COLUMNS)
    record = ms.verify(call["result"], **call.keywords())
    emit(where, verify_sheet(record), record)
    return 0 if record.passed else NOT_PASSED
