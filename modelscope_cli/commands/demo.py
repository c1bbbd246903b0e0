"""`modelscope demo`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import console
from modelscope_cli.shell.output_options import QuietOptions
from modelscope_cli.shell.parameters import command

_NEXT = (
    "modelscope summary {0}/tiny_resnet.py:TinyResNet",
    "modelscope check {0}/tiny_resnet.py:TinyResNet -c {0}/sick.safetensors",
    "modelscope watch --every 1 {0}/train.py --variant sick",
)


@command
def demo(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to put the samples.")] = Path("demo"),
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            rich_help_panel="Output",
            help="Overwrite files, or write into a folder that is not empty.",
        ),
    ] = False,
    *,
    show: QuietOptions,
) -> None:
    """Copy the samples: images, a tiny network and a training script.

    The examples in the help of every command use them.

    Examples:

      modelscope demo

      modelscope demo elsewhere
    """

    show.begin_quietly(is_forced=force)
    files = ms.demo(folder, force=force)
    beside = [file for file in files if file.parent == folder]
    for file in beside:
        console.write(f"{file}\n")
    n_shapes = len(files) - len(beside)
    console.write(f"{folder / 'shapes'}   {n_shapes} images, one folder for each class\n")
    for line in _NEXT:
        console.note(f"try: {line.format(folder)}")
