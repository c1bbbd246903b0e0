"""Copy the sample files: images, a tiny network with healthy and broken weights, a training script."""

import shlex
from os import PathLike
from pathlib import Path

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.output_files import make_folder, write_bytes

_FILES = (
    *("star.png", "harbour.jpg", "shapes/*/*.jpg"),
    *("tiny_resnet.py", "tiny_resnet.safetensors", "sick.safetensors"),
    *("train.py", "dataset.py"),
)
_HERE = Path(__file__).resolve().parent


def demo(folder: str | PathLike[str] = "demo", *, force: bool = False) -> tuple[Path, ...]:
    """Copy the samples into a folder and return the files.

    Args:
        folder: where to put the samples. In Python, with `force` it may contain files.

    Raises:
        UsageError: the folder is not empty (exit 2 on the command line).
        CannotRunError: it cannot be written, or the package came without its samples (exit 4).
    """
    target = Path(folder)
    # Inside the package in a wheel, next to it in a checkout.
    source = next((one for one in (_HERE / "samples", _HERE.parent / "samples") if one.is_dir()), None)
    if source is None:
        raise CannotRunError(
            "this installation has no samples", "pip install --force-reinstall modelscope-cli"
        )
    if target.is_dir() and any(target.iterdir()) and not force:
        hint = f"modelscope demo {shlex.quote(str(target))} --force"
        raise UsageError(f"folder '{target}' is not empty", hint)
    written = []
    for file in (file for pattern in _FILES for file in sorted(source.glob(pattern))):
        written.append(target / file.relative_to(source))
        make_folder(written[-1].parent, "modelscope demo FOLDER")
        write_bytes(written[-1], file.read_bytes())
    return tuple(written)
