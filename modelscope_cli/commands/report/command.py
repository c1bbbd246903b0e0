"""`modelscope report`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import option_groups as groups
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.groups import spread
from modelscope_cli.shell.named_model import refuse_model
from modelscope_cli.shell.output import emit


@spread
def report(
    a: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT",
            help="The folder of a command, its report.json, another page, or a folder of these.",
        ),
    ],
    b: Annotated[
        Path | None, typer.Argument(metavar="OTHER", help="A second result, to compare the first with.")
    ] = None,
    large: Annotated[bool, typer.Option("--large", help="Also write pages above 25 MB.")] = False,
    output: groups.OutputOptions = groups.OUTPUT,
) -> None:
    """Make one self-contained page of a result, to view in a browser and to share.

    The page needs no network and no other file: tables to sort and filter, curves, images, and the whole result as
    data, which modelscope reads back. Two results are compared; a folder of results gets an index. Without --html
    the page is written into the folder of the result.

    Examples:

      modelscope watch --out sick demo/train.py --variant sick

      modelscope report sick

      modelscope watch --out healthy demo/train.py

      modelscope report sick healthy --html comparison.html

      modelscope report .
    """
    from modelscope_cli.commands.report.table import COLUMNS, report_sheet
    from modelscope_cli.report.sheet import choose_columns

    where = output.begin()
    choose_columns(COLUMNS, output.columns)
    refuse_model(str(a), "--html", "report.html")
    record = ms.make_report(a, b, html=where.html, large=large, progress=PROGRESS)
    emit(where.without_page(), report_sheet(record, output.columns), record)
