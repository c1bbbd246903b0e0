"""`modelscope models`."""

from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.output import emit


@spread
def models(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name, or a glob: resnet, 'vit_*', timm:vit."),
    ] = None,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """List the models of torchvision, or of timm, with parameters, multiply-adds and input size.

    The figures are those torchvision publishes for the default weights; `modelscope summary` measures them, and
    those of timm's models.

    Examples:

      modelscope models

      modelscope models 'vit_*' --columns name,params,gmacs

      modelscope models timm:vit_tiny
    """
    from modelscope_cli.commands.models.table import models_sheet

    where = output.begin()
    catalogue = ms.list_models(pattern)
    emit(where, models_sheet(catalogue), catalogue)
