"""`modelscope models`."""

from typing import Annotated

import typer

from modelscope_cli.cli import _console
from modelscope_cli.cli import _options as opt
from modelscope_cli.cli._emit import destination, emit
from modelscope_cli.cli._run import set_up


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
    from modelscope_cli.models.catalogue import list_models, match_names
    from modelscope_cli.records.models import Catalogue
    from modelscope_cli.records.run import versions
    from modelscope_cli.report.models_sheet import models_sheet

    set_up(quiet, debug)
    where = destination(format, json, output)
    names = match_names(pattern)
    catalogue = Catalogue(versions(), _console.settings.argv, list_models(names))
    emit(where, models_sheet(catalogue, columns), catalogue.to_dict())
