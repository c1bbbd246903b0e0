"""`modelscope models`."""

from typing import Annotated

import typer

from modelscope_cli.shell import console as _console
from modelscope_cli.shell import options as opt
from modelscope_cli.shell.output import destination, emit
from modelscope_cli.shell.run import set_up


def models(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="[PATTERN]", help="Part of a name, or a glob: resnet, 'vit_*'."),
    ] = None,
    columns: opt.ColumnsOpt = None,
    format: opt.FormatOpt = "auto",
    json: opt.JsonOpt = False,
    output: opt.OutputOpt = None,
    quiet: opt.QuietOpt = False,
    debug: opt.DebugOpt = False,
) -> None:
    """List torchvision's models with their parameters, multiply-adds, input size and weights.

    The figures are those torchvision publishes for the default weights; `modelscope summary` measures them.

    Examples:

      modelscope models

      modelscope models 'vit_*' --columns name,params,gmacs
    """
    from modelscope_cli.commands.models.table import models_sheet
    from modelscope_cli.models.catalogue import list_models, match_names
    from modelscope_cli.records.models import Catalogue
    from modelscope_cli.records.run import versions

    set_up(quiet, debug)
    where = destination(format, json, output)
    names = match_names(pattern)
    catalogue = Catalogue(versions(), _console.settings.argv, list_models(names))
    emit(where, models_sheet(catalogue, columns), catalogue.to_dict())
