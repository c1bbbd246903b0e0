"""`modelscope attack`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.commands.attack.options import ATTACK, AttackOptions
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import said, spread
from modelscope_cli.shell.named_model import FirstArg, need_images
from modelscope_cli.shell.output import emit


@spread
def attack(
    first: FirstArg = None,
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="One image, or '-' for standard input.")
    ] = None,
    search: AttackOptions = ATTACK,
    hook: opt.HookOpt = None,
    model: groups.ModelOptions = groups.MODEL,
    prepared: groups.ImageOptions = groups.IMAGES,
    folder: groups.FolderOptions = groups.FOLDER,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Look for the smallest change of an image that fools the model, save it, and check the file.

    The smallest change is found by bisection over --epsilon, in some 15 searches. With --epsilon there is one
    search, for any image within it.

    The gradient is taken with respect to the pixels the model sees, before normalisation. The exit code is 0
    whether or not the model was fooled.

    Examples:

      modelscope attack demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope attack squeezenet1_1 demo/harbour.jpg --weights none --method fgsm --epsilon 2/255

      modelscope attack demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors --norm l2
        --epsilon 1 --steps 50 --restarts 3 --target ring
    """
    from modelscope_cli.commands.attack.table import COLUMNS, attack_sheet

    where = output.begin()
    named, images = model.take("attack", first, images)
    need_images("attack", images)
    asked = model.request(named), prepared.request(images, model.seed)
    where.view.check(COLUMNS)
    search.check(model.seed)
    asked[1].check_one()
    record = ms.attack(
        *asked,
        **said(search),
        hook=hook or (),
        out=folder.choose("attack", named),
        force=output.force,
        progress=PROGRESS,
    )
    emit(where, attack_sheet(record), record)
