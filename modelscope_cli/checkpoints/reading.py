"""Describe a checkpoint by its headers: one file, or shards with an index.

`read_contents` is the entry point of this package. Standard library.
"""

import json
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePath

from modelscope_cli.checkpoints.entries import Contents, TensorEntry, UnsupportedError
from modelscope_cli.checkpoints.file_type import (
    CHECKPOINT_SUFFIXES,
    INDEX,
    damaged,
    foreign_model,
    guess,
    is_checkpoint_name,
    is_onnx_file,
    is_safetensors,
    read_head,
    remedy,
)
from modelscope_cli.checkpoints.onnx_file import OnnxModel
from modelscope_cli.checkpoints.safetensors_header import read_safetensors
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.naming import some

METADATA = ".metadata"  # of a folder that torch.distributed.checkpoint writes
# Room for some 300,000 tensors; parsed JSON takes up to 25 times the memory of its text.
MAX_INDEX_BYTES = 32 << 20


def read_shards(index: Path, key: str | None = None) -> Contents:
    """Describe the tensors of all files named by a `*.index.json`."""
    from modelscope_cli.checkpoints.torch_file import read_torch
    from modelscope_cli.checkpoints.tree import under

    by_file, metadata = _read_index(index)
    shards: dict[str, Contents] = {}
    tensors: list[TensorEntry] = []
    for file, names in sorted(by_file.items()):
        path = index.parent / file
        if not path.is_file():
            message = f"shard '{path}' is missing: '{index.name}' names it for {len(names)} tensors"
            raise CannotRunError(message, f"ls {shlex.quote(str(index.parent))}")
        shards[file] = read_safetensors(path) if file.endswith(".safetensors") else read_torch(path)
        by_name = {tensor.name: tensor for tensor in shards[file].tensors}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise damaged(path, f"it lacks '{missing[0]}', which is listed in '{index.name}'")
        tensors += [by_name[name] for name in names]
    foreign = tuple(dict.fromkeys(name for shard in shards.values() for name in shard.foreign))
    beside = {key: value for shard in shards.values() for key, value in shard.beside.items()}
    paths = tuple(shard.path for shard in shards.values())
    inside = tuple(name for shard in shards.values() for name in shard.inside)
    contents = Contents(index, f"{len(paths)} shards", tuple(tensors), beside, metadata, foreign)
    return under(replace(contents, files=(index, *paths), inside=inside), key)


def shards_of(index: Path) -> tuple[str, ...]:
    """Return the file names in a `*.index.json`; the files need not exist."""
    return tuple(sorted(_read_index(index)[0]))


def _read_index(index: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the tensor names by file, and the metadata."""
    read_head(index)
    if index.stat().st_size > MAX_INDEX_BYTES:
        raise damaged(index, UnsupportedError(f"an index of more than {MAX_INDEX_BYTES:,} bytes"))
    try:
        document = json.loads(index.read_bytes())
        files: dict[str, str] = document["weight_map"]
        metadata = {key: str(value) for key, value in document.get("metadata", {}).items()}
        by_file: dict[str, list[str]] = {}
        for name, file in files.items():
            by_file.setdefault(_inside(index, file), []).append(name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CannotRunError(
            f"'{index}' is not an index of shards: no readable 'weight_map'",
            f"head -c 300 {shlex.quote(str(index))}",
        ) from error
    return by_file, metadata


def is_outside(file: str) -> bool:
    """Tell whether a file name in an index leads out of the index's folder."""
    path = PurePath(file)
    return path.is_absolute() or ".." in path.parts or "\0" in file


def _inside(index: Path, file: str) -> str:
    """Return the name of a shard, refusing files outside the folder of the index."""
    if is_outside(file):
        message = f"'{index}' names a file outside its folder, '{file[:200]!s}'"
        raise CannotRunError(message, f"grep -n '\\.\\./\\|\"/' {shlex.quote(str(index))}")
    return file


# Names of a model's weights in a folder with other files, the likeliest first.
_MAIN = tuple(
    f"{name}{ending}"
    for ending in (f".safetensors{INDEX}", ".safetensors", f".bin{INDEX}", ".bin")
    for name in ("model", "pytorch_model", "diffusion_pytorch_model", "adapter_model")
)
_N_NAMED = 5


def read_contents(path: Path, key: str | None = None) -> Contents:
    """Describe a checkpoint by its headers; the format is detected by content, not suffix.

    Args:
        key: key of the tensors; None for the state dict at its usual place.
    """
    if path.is_dir():
        if (path / METADATA).is_file():
            message = f"'{path}' is a torch.distributed.checkpoint folder, which torch turns into one file"
            convert = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"
            raise CannotRunError(message, f"{convert} {shlex.quote(str(path))} model.pt")
        file = checkpoint_in(path)
        contents = read_contents(file, key)
        note = f"read '{file.name}' of the folder" + (f", {contents.note}" if contents.note else "")
        return replace(contents, note=note)
    if path.name.endswith(INDEX):
        return read_shards(path, key)
    if path.exists() and not path.is_file():  # a pipe may block, and cannot be read twice
        raise CannotRunError(f"checkpoint '{path}' is not a plain file", f"ls -l {shlex.quote(str(path))}")
    from modelscope_cli.checkpoints.torch_file import read_torch  # with the reader of pickles
    from modelscope_cli.checkpoints.tree import under

    if is_onnx_file(path):
        return under(read_onnx(path).contents(), key)
    head = read_head(path)
    if is_safetensors(head) or path.suffix.lower() == ".safetensors":
        return under(read_safetensors(path), key)
    if head.startswith((b"PK\x03\x04", b"\x80")):
        return read_torch(path, key)
    raise CannotRunError(f"'{path}' is not a checkpoint: {guess(head, path=path)}", remedy(path, head))


INSTALL_ONNX = "pip install 'modelscope-cli[onnx]'"


def read_onnx(path: Path) -> OnnxModel:
    """Read an ONNX file as data.

    Raises:
        UsageError: the package `onnx` is not installed.
        CannotRunError: not an ONNX file, damaged, or with external data outside its folder.
    """
    if find_spec("onnx") is None:
        raise UsageError(f"reading '{path}' needs onnx, which is not installed", INSTALL_ONNX)
    from modelscope_cli.checkpoints.onnx_protos import read_model

    return read_model(path)


def is_several(path: Path) -> bool:
    """Tell whether a checkpoint has several files: an index of shards, or a folder of torch.distributed, which
    `read_contents` refuses."""
    return path.name.endswith(INDEX) or (path / METADATA).is_file()


def checkpoint_in(folder: Path) -> Path:
    """Return the main checkpoint of a folder: the weights by their usual name, or its only checkpoint."""
    inside = sorted(file.name for file in folder.iterdir() if is_checkpoint_name(file.name))
    main = [name for name in _MAIN if name in inside]
    if main or len(inside) == 1:
        return folder / (main or inside)[0]
    if inside:
        raise CannotRunError(
            f"'{folder}' is a folder with several checkpoints: {some(inside, _N_NAMED)}",
            f"modelscope weights --scan {shlex.quote(str(folder))}   scans all; or give one, such as "
            f"{shlex.quote(str(folder / inside[0]))}",
        )
    if (kind := foreign_model(folder)) is not None:
        raise CannotRunError(f"'{folder}' is not a checkpoint: it is {kind}", remedy(folder, b""))
    suffixes = " ".join(CHECKPOINT_SUFFIXES)
    missing = f"no '{METADATA}', no '*{INDEX}', and no {suffixes}"
    message = f"'{folder}' is a folder that contains no checkpoint: {missing}"
    raise CannotRunError(message, f"ls {shlex.quote(str(folder))}")
