"""`modelscope report`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.output_files import OutputFolder
from modelscope_cli.records.reading import PAGE
from modelscope_cli.records.refusals import refuse_both
from modelscope_cli.shell.console import PROGRESS
from modelscope_cli.shell.named_model import names_model
from modelscope_cli.shell.options import ImagesArgument, InputOptions, Labels, NamedModelOptions
from modelscope_cli.shell.output import check_page, emit
from modelscope_cli.shell.output_options import OutputOptions
from modelscope_cli.shell.parameters import command


@command
def report(
    result: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|RESULT",
            help="A model; or a saved result: the folder that a command wrote, its `report.json`, the file of `-o "
            "result.json`, or another page.",
            show_default=False,
        ),
    ] = None,
    images: ImagesArgument = None,
    labels: Labels = None,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page to write; by default, report.html in the folder of the result, or in a new one.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for the page, report.html.")] = None,
    *,
    on: NamedModelOptions,
    data: InputOptions,
    show: OutputOptions,
) -> None:
    """Make one page about a model and an image, or from a saved result.

    The page of a model shows the results of predict, explain, check, summary, stats, featuremaps and grads with
    their default options, on noise if no image is given. The page needs no network and no other file. It contains
    tables to sort and filter, curves, images, and the complete results as data, which modelscope can read.

    Examples:

      modelscope report demo/tiny_resnet.py:TinyResNet demo/star.png -c demo/tiny_resnet.safetensors

      modelscope watch --out sick demo/train.py --variant sick

      modelscope report sick
    """
    from modelscope_cli.report.listings import pages_sheet
    from modelscope_cli.reporting import is_saved

    where = show.begin()
    if html is not None and out is not None:
        refuse_both("html", html, "out", out)
    if out is not None:
        folder = OutputFolder(out, show.force)
        folder.check()
        html = folder.begun() / PAGE
    if html is not None:
        check_page(html)
    source: str | ModelRequest
    inputs: list[str] | InputRequest | None
    if result is not None and is_saved(result):
        source, inputs = result, images or None
    else:
        # The first word is the model, unless --model names one.
        is_model = names_model if on.model else lambda _: True
        source, files = on.choose(result, images, is_model=is_model)
        inputs = data.request(files, on.seed)
    record = ms.make_report(source, inputs, labels=labels, html=html, force=show.force, progress=PROGRESS)
    emit(where, pages_sheet(record), record)
