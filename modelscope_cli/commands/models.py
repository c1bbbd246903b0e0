"""`modelscope models`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit

PLACE = 53  # in `modelscope --help`


@command
def models(call: CommandCall) -> None:
    """List the models of torchvision, or of timm, with parameters, multiply-adds and input size.

    The numbers are those that torchvision publishes for its default weights; `modelscope summary` measures any
    model, also of timm.

    Examples:

      modelscope models

      modelscope models 'vit_*' --columns name,params,gmacs

      modelscope models timm:vit_tiny
    """
    from modelscope_cli.report.listings import models_sheet

    where = call.begin()
    catalogue = ms.list_models(call["pattern"])
    emit(where, models_sheet(catalogue), catalogue)
