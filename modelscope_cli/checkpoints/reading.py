"""The door of this room: a path becomes a description of what the checkpoint holds. Standard library."""

import shlex
from dataclasses import replace
from pathlib import Path

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.checkpoints.file_type import (
    CHECKPOINT_SUFFIXES,
    foreign_model,
    guess,
    is_safetensors,
    read_head,
    remedy,
)
from modelscope_cli.checkpoints.safetensors_header import read_safetensors
from modelscope_cli.checkpoints.several_files import METADATA, read_distributed, read_shards
from modelscope_cli.checkpoints.torch_file import read_torch
from modelscope_cli.checkpoints.tree import under
from modelscope_cli.errors import CannotRunError, quoted

INDEX = ".index.json"
# What the weights of a model are called in a folder that holds other files too, the likeliest first.
_MAIN = tuple(
    f"{name}{ending}"
    for ending in (f".safetensors{INDEX}", ".safetensors", f".bin{INDEX}", ".bin")
    for name in ("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model")
)
_N_NAMED = 5


def read_contents(path: Path, key: str | None = None) -> Contents:
    """Describe a checkpoint by its headers; content, not suffix, says of which format it is.

    Args:
        key: what to take out of it; None for the state dict, where it usually stands.

    Raises:
        UsageError: nothing goes by this key (exit 2).
        CannotRunError: not there, not a checkpoint, damaged, or a lie in it (exit 4).
    """
    if path.is_dir():
        if (path / METADATA).is_file():
            return read_distributed(path, key)
        file = checkpoint_in(path)
        contents = read_contents(file, key)
        note = f"read '{file.name}' of the folder" + (f", {contents.note}" if contents.note else "")
        return replace(contents, note=note)
    if path.name.endswith(INDEX):
        return read_shards(path, key)
    if path.exists() and not path.is_file():  # a pipe would keep us waiting, and cannot be read twice
        raise CannotRunError(f"checkpoint '{path}' is not a plain file", f"ls -l {shlex.quote(str(path))}")
    head = read_head(path)
    if is_safetensors(head) or path.suffix.lower() == ".safetensors":
        return under(read_safetensors(path), key)
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return read_torch(path, key)
    raise CannotRunError(f"'{path}' is not a checkpoint: {guess(head, path=path)}", remedy(path, head))


def is_several(path: Path) -> bool:
    """Tell a checkpoint of several files: an index of shards, or the folder of a distributed one."""
    return path.name.endswith(INDEX) or (path / METADATA).is_file()


def checkpoint_in(folder: Path) -> Path:
    """Return the file that a folder is for: its weights, as the usual programs call them, or its only checkpoint.

    Raises:
        CannotRunError: there is none, or several (exit 4).
    """
    inside = sorted(file.name for file in folder.iterdir() if is_checkpoint_name(file.name))
    main = [name for name in _MAIN if name in inside]
    if main or len(inside) == 1:
        return folder / (main or inside)[0]
    if inside:
        named = ", ".join(inside[:_N_NAMED]) + (
            f" and {len(inside) - _N_NAMED} more" * (len(inside) > _N_NAMED)
        )
        raise CannotRunError(
            f"'{folder}' is a folder with several checkpoints: {named}",
            f"did you mean {quoted(str(folder / name) for name in inside[:_N_NAMED])}",
        )
    if (what := foreign_model(folder)) is not None:
        raise CannotRunError(f"'{folder}' is not a checkpoint: it is {what}", remedy(folder, b""))
    suffixes = " ".join(CHECKPOINT_SUFFIXES)
    what = f"no '{METADATA}', no '*{INDEX}', and no {suffixes}"
    message = f"'{folder}' is a folder that does not hold a checkpoint: {what}"
    raise CannotRunError(message, f"ls {shlex.quote(str(folder))}")


def is_checkpoint_name(name: str) -> bool:
    """Tell by its name what may be a checkpoint."""
    return name.endswith(INDEX) or name.lower().endswith((*CHECKPOINT_SUFFIXES, ".pth.tar"))
