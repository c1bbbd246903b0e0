"""`modelscope demo`."""

from pathlib import Path

import modelscope_cli as ms
from modelscope_cli.shell import console
from modelscope_cli.shell.call import CommandCall, command

_NEXT = (
    "modelscope summary {0}/tiny_resnet.py:TinyResNet",
    "modelscope check {0}/tiny_resnet.py:TinyResNet {0}/star.png -c {0}/sick.safetensors",
    "modelscope watch --every 1 {0}/train.py --variant sick",
)

PLACE = 55  # in `modelscope --help`


@command
def demo(call: CommandCall) -> None:
    """Put the samples into a folder: images, a tiny network with its weights, and a training script.

    The examples in the help of every command use this folder.

    Examples:

      modelscope demo

      modelscope demo elsewhere
    """
    folder = Path(call["folder"])
    files = ms.demo(folder, force=call["force"])
    beside = [file for file in files if file.parent == folder]
    for file in beside:
        console.write(f"{file}\n")
    n_shapes = len(files) - len(beside)
    console.write(f"{folder / 'shapes'}   {n_shapes} images, one folder for each class\n")
    for line in _NEXT:
        console.note(f"try: {line.format(folder)}")
