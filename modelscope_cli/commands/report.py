"""`modelscope report`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.named_model import refuse_model
from modelscope_cli.shell.output import check_page, emit
from modelscope_cli.shell.output_options import OutputOptions
from modelscope_cli.shell.parameters import command


@command
def report(
    result: Annotated[
        Path,
        typer.Argument(
            metavar="RESULT",
            help="The folder of a command, its `report.json`, what `-o result.json` wrote, or another page.",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the page is written; report.html in the folder of the result by default.",
        ),
    ] = None,
    *,
    show: OutputOptions,
) -> None:
    """Make one self-contained page of a result, to view in a browser and to share.

    The page needs no network and no other file. It holds tables to sort and filter, curves, images, and the whole
    result as data, which modelscope can read. Without --html the page is written into the folder of the result.

    Examples:

      modelscope watch --out sick demo/train.py --variant sick

      modelscope report sick
    """
    from modelscope_cli.report.listings import pages_sheet

    where = show.begin()
    refuse_model(str(result), "--html", "report.html")
    if html is not None:
        check_page(html)
    record = ms.make_report(result, html=html, force=show.force, progress=PROGRESS)
    emit(where, pages_sheet(record), record)
