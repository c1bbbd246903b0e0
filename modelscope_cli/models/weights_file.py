"""Tell weights files from other inputs by name, first bytes and tensor names."""

import mimetypes
import os
from pathlib import Path
from zipfile import is_zipfile

from modelscope_cli.checkpoints.entries import TORCH_EXPORT, TORCH_SCRIPT
from modelscope_cli.checkpoints.file_type import foreign_model, is_checkpoint_name
from modelscope_cli.checkpoints.reading import checkpoint_in, is_several, read_contents
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.inputs.files import IMAGE_FORMATS, IMAGE_SUFFIXES, is_archive

_PARTS = ("weight", "bias", "running_mean", "running_var")
# Tensors, and unsupported images and videos, which get their own messages.
_NO_MODELS = (
    *(*IMAGE_SUFFIXES, ".pt", ".npy", ".npz", ".safetensors"),
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".tga", ".exr", ".dng", ".eps", ".dcm"),
)
_OF_FOLDERS = ("config.json", "saved_model.pb")


def is_checkpoint_file(typed: str) -> bool:
    return is_checkpoint_name(typed) and os.path.isfile(typed)


def is_weights_file(typed: str) -> bool:
    """Tell whether a file holds weights or a program, rather than input tensors with the same suffix."""
    if not is_checkpoint_file(typed):
        return False
    try:
        contents = read_contents(Path(typed))
    except ModelscopeError:
        return False
    is_program = contents.format in (TORCH_SCRIPT, TORCH_EXPORT)
    return is_program or any(tensor.name.rpartition(".")[2] in _PARTS for tensor in contents.tensors)


def is_script(typed: str) -> bool:
    """Tell whether a file is an archive of TorchScript, whatever its suffix."""
    try:
        return is_zipfile(typed) and read_contents(Path(typed)).format == TORCH_SCRIPT
    except ModelscopeError:
        return False


def is_model_file(typed: str) -> bool:
    """Tell whether a file or folder holds a model of any format rather than images.

    A missing file is judged by its suffix.
    """
    path = Path(typed)
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return False
    if os.path.isdir(typed):
        return foreign_model(path) is not None or _is_model_folder(path)
    return is_weights_file(typed) or (foreign_model(path) is not None and not _is_image(typed))


def is_no_image(typed: str) -> bool:
    """Tell whether a file is neither an image nor tensors nor an archive of images, by name and first bytes."""
    kind = mimetypes.guess_type(typed)[0] or ""
    is_named = Path(typed).suffix.lower() in _NO_MODELS or kind.startswith(("image/", "video/"))
    is_plain = os.path.isfile(typed) and not (is_named or is_archive(typed))
    return is_plain and not _is_image(typed)


def _is_image(file: str) -> bool:
    from PIL import Image

    try:
        with Image.open(file, formats=IMAGE_FORMATS):
            return True
    except Exception:  # not an archive, cut short, too large or unreadable: each format raises its own errors
        return False


def _is_model_folder(folder: Path) -> bool:
    try:
        names = os.listdir(folder)
        if any(Path(name).suffix.lower() in IMAGE_SUFFIXES for name in names):
            return False
        return is_several(folder) or any(name in names for name in _OF_FOLDERS) or bool(checkpoint_in(folder))
    except (OSError, ModelscopeError):
        return False
