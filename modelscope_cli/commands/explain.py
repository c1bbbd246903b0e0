"""`modelscope explain`."""

from pathlib import Path

import modelscope_cli as ms
from modelscope_cli import interrupts
from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.records.explain import MOST_SHOWN, NONE
from modelscope_cli.shell import console
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import check_target, emit, save, save_tensors

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
    tensors, folder = call["save_tensors"], call["out"]
    is_saved = call.check_saving(tensors)
    if is_saved and folder is None and not console.settings.is_silent:  # one of several processes writes
        folder = call.folder(model.model)
    if tensors is not None:
        _check_tensors(tensors, inputs)
    record = ms.explain(model, inputs, **{**call.keywords(), "receipt": receipt})
    if tensors is not None:
        record = save_tensors(record, tensors)
    if is_saved and folder is not None:
        record = save(record, folder, has_content=bool(interrupts.resumable))
    emit(where, explain_sheet(record), record)
    return 0 if record.passed else NOT_MET


def _check_tensors(file: Path, inputs: InputRequest) -> None:
    """Refuse, before anything runs, a file that cannot be written, and more images than have maps in it."""
    from modelscope_cli.inputs.files import find_images

    if not console.settings.is_silent:
        check_target(file)
    if len(find_images(name for name in inputs.files if name != "-").files) > MOST_SHOWN:
        raise UsageError(
            f"--save-tensors keeps the maps of {MOST_SHOWN} images at most", "leave out --save-tensors"
        )
