"""`modelscope attack`."""

import modelscope_cli as ms
from modelscope_cli.shell.call import CommandCall, command
from modelscope_cli.shell.output import emit, save

_SEARCH = ("method", "norm", "epsilon", "steps", "target")

PLACE = 33  # in `modelscope --help`


@command
def attack(call: CommandCall) -> None:
    """Find a minimal perturbation of an image that fools the model, save it, and check the file.

    The smallest perturbation is found by bisection over epsilon, in about 15 searches. With --epsilon there is one
    search, for any image within it.

    The gradient is taken with respect to the pixels the model sees, before normalisation. The exit code is 0
    whether or not the model was fooled.

    Examples:

      modelscope attack demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope attack squeezenet1_1 demo/harbour.jpg --weights none --method fgsm --epsilon 2/255

      modelscope attack demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --norm l2
        --epsilon 1 --steps 50 --target ring
    """
    from modelscope_cli.analysis.attack.request import make_request
    from modelscope_cli.report.attack.table import COLUMNS, attack_sheet

    where = call.begin()
    model, inputs = call.subject()
    call.need_images(inputs)
    where.view.check(COLUMNS)
    search = {name: call[name] for name in _SEARCH}
    make_request(**search, seed=model.seed)  # refused before torch is imported
    inputs.check_one()
    folder = call.folder(model.model)
    record = save(ms.attack(model, inputs, **call.keywords()), folder)
    emit(where, attack_sheet(record), record)
