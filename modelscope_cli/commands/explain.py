"""`modelscope explain`."""

import modelscope_cli as ms
from modelscope_cli.errors import UsageError
from modelscope_cli.records.explain import NONE
from modelscope_cli.shell import console
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

NOT_MET = 1

PLACE = 15  # in `modelscope --help`


@command
def explain(call: CommandCall) -> int:
    """Show which parts of an image are evidence for a class, and test how reliable each map is.

    The layer is chosen by following one run back from the score, and the reason is printed. Maps that pass more
    tests come first. Over a folder all numbers are means.

    Examples:

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --method
        hirescam --require passed

      modelscope explain demo/tiny_resnet.py:TinyResNet demo/shapes -c demo/tiny_resnet.safetensors --method
        hirescam --receipt none
    """
    from modelscope_cli.analysis.explaining.request import choose_methods, receipt_kind
    from modelscope_cli.report.explain.table import explain_columns, explain_sheet

    where = call.begin(is_shared=True)
    model, inputs = call.subject()
    where.view.check(explain_columns())
    choose_methods(call["method"])
    kind = receipt_kind(call["receipt"])
    receipt = NONE if call["no_receipt"] else kind
    if call["require"] and receipt == NONE:
        raise UsageError("--require is about the receipt", "leave out --receipt none")
    is_saved, out = call.check_saving(call["save_tensors"]), call["out"]
    if is_saved and out is None and not console.settings.is_silent:  # one of several processes writes
        out = call.folder(model.model)
    keywords = {**call.keywords(), "receipt": receipt, "out": out, "keep": call["out"] is not None}
    record = ms.explain(model, inputs, **keywords)
    emit(where, explain_sheet(record), record)
    return 0 if record.passed else NOT_MET
