"""`modelscope attack`."""

from typing import Annotated, Any, Literal

import typer

import modelscope_cli as ms
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.options import Hook, ImageOptions, ModelArgument, ModelOptions, need_images
from modelscope_cli.shell.output import emit, save_report
from modelscope_cli.shell.output_options import Out, OutputOptions
from modelscope_cli.shell.parameters import command


@command
def attack(
    first: ModelArgument = None,
    images: Annotated[
        list[str] | None, typer.Argument(metavar="IMAGE", help="One image, or '-' for standard input.")
    ] = None,
    method: Annotated[
        Literal["fgsm", "ifgsm", "pgd"],
        typer.Option(
            rich_help_panel="Attack",
            help="fgsm: one step along the sign of the gradient; ifgsm: several smaller steps; pgd: the same "
            "from a random start.",
        ),
    ] = "pgd",
    norm: Annotated[
        Literal["linf", "l2"],
        typer.Option(
            rich_help_panel="Attack",
            help="The norm that epsilon bounds: linf, the change of every value; l2, the length of the whole "
            "perturbation.",
        ),
    ] = "linf",
    epsilon: Annotated[
        str | None,
        typer.Option(
            "--epsilon",
            "-e",
            metavar="E",
            rich_help_panel="Attack",
            help="The size of the perturbation, with pixels in 0..1: stop at the first image that fools the "
            "model. Without it, find the smallest.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            rich_help_panel="Attack",
            help="Number of gradient steps.",
            show_default="ifgsm 10, pgd 20",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET",
            rich_help_panel="Attack",
            help="The class to reach, an index or a label; without it, any but the predicted one.",
        ),
    ] = None,
    hook: Hook = None,
    out: Out = None,
    *,
    on: ModelOptions,
    data: ImageOptions,
    show: OutputOptions,
) -> None:
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

    where = show.begin()
    model, files = on.choose(first, images)
    inputs = data.request(files, on.seed)
    need_images(inputs)
    where.layout.check(COLUMNS)
    search: dict[str, Any] = {
        "method": method,
        "norm": norm,
        "epsilon": epsilon,
        "steps": steps,
        "target": target,
    }
    make_request(**search, seed=model.seed)  # refused before torch is imported
    inputs.check_one()
    folder = show.folder(out, model.model)
    record = ms.attack(model, inputs, **search, hook=hook or (), progress=PROGRESS)
    record = save_report(record, folder)
    emit(where, attack_sheet(record), record)
