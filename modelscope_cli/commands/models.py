"""`modelscope models`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell.output import emit
from modelscope_cli.shell.output_options import OutputOptions
from modelscope_cli.shell.parameters import command


@command
def models(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Part of a name, or a glob: resnet, 'vit_*', timm:vit."),
    ] = None,
    *,
    show: OutputOptions,
) -> None:
    """List the models of torchvision or timm, with parameters and input size.

    The numbers are those that torchvision publishes for its default weights; `modelscope summary` measures any
    model, also of timm.

    Examples:

      modelscope models

      modelscope models 'vit_*' --columns name,params,gmacs

      modelscope models timm:vit_tiny
    """
    from modelscope_cli.report.listings import models_sheet

    where = show.begin()
    catalogue = ms.list_models(pattern)
    emit(where, models_sheet(catalogue), catalogue)
