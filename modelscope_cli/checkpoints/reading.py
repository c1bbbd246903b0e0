"""The door of this room: a path becomes a description of what the checkpoint holds. Standard library."""

import shlex
from pathlib import Path

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.checkpoints.file_type import CHECKPOINT_SUFFIXES, guess, read_head, remedy
from modelscope_cli.checkpoints.safetensors_header import read_safetensors
from modelscope_cli.checkpoints.several_files import METADATA, read_distributed, read_shards
from modelscope_cli.checkpoints.torch_file import read_torch
from modelscope_cli.errors import CannotRunError

_INDEX = ".index.json"


def read_contents(path: Path) -> Contents:
    """Describe a checkpoint by its headers; content, not suffix, says of which format it is.

    Raises:
        CannotRunError: not there, no checkpoint, damaged, or a lie in it (exit 4).
    """
    if path.is_dir():
        return _read_folder(path)
    if path.name.endswith(_INDEX):
        return read_shards(path)
    if path.exists() and not path.is_file():  # a pipe would keep us waiting, and cannot be read twice
        raise CannotRunError(f"checkpoint '{path}' is no plain file", f"ls -l {shlex.quote(str(path))}")
    head = read_head(path)
    if head[8:9] == b"{" or path.suffix.lower() == ".safetensors":
        return read_safetensors(path)
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return read_torch(path)
    raise CannotRunError(f"'{path}' is not a checkpoint: {guess(head)}", remedy(path, head))


def is_several(path: Path) -> bool:
    """Tell a checkpoint of several files: an index of shards, or a folder that holds one or is distributed."""
    return path.name.endswith(_INDEX) or (path / METADATA).is_file() or any(path.glob(f"*{_INDEX}"))


def _read_folder(path: Path) -> Contents:
    if (path / METADATA).is_file():
        return read_distributed(path)
    indexes = sorted(path.glob(f"*{_INDEX}"))
    if len(indexes) == 1:
        return read_shards(indexes[0])
    inside = sorted(file for file in path.iterdir() if file.suffix.lower() in CHECKPOINT_SUFFIXES)
    file = (indexes or inside or [path / "model.safetensors"])[0]
    message = f"'{path}' is a folder, and no checkpoint: it holds neither '{METADATA}' nor one '*{_INDEX}'"
    raise CannotRunError(message, f"modelscope weights {shlex.quote(str(file))}")
