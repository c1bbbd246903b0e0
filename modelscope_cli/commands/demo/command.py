"""`modelscope demo`."""

from pathlib import Path
from typing import Annotated

import typer

import modelscope_cli as ms
from modelscope_cli.shell import console
from modelscope_cli.shell import options as opt

_NEXT = (
    "modelscope summary {0}/tiny_resnet.py:TinyResNet",
    "modelscope check {0}/tiny_resnet.py:TinyResNet {0}/star.png -c {0}/sick.safetensors",
    "modelscope watch {0}/train.py --variant sick",
)


def demo(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Where to put them.")] = "demo",
    force: opt.ForceOpt = False,
) -> None:
    """Put the samples into a folder: images, a tiny network with its weights, and a training script.

    The examples of every command's help run beside that folder.

    Examples:

      modelscope demo

      modelscope demo elsewhere
    """
    files = ms.demo(folder, force=force)
    beside = [file for file in files if file.parent == Path(folder)]
    for file in beside:
        console.write(f"{file}\n")
    n_shapes = len(files) - len(beside)
    console.write(f"{Path(folder) / 'shapes'}   {n_shapes} images, one folder for each class\n")
    for command in _NEXT:
        console.note(f"try: {command.format(folder)}")
