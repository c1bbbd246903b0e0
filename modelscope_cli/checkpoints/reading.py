"""Describe a checkpoint by its headers: one file, shards with an index, or a folder of torch.distributed.

`read_contents` is the entry point of this package. Standard library.
"""

import json
import math
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

from modelscope_cli.checkpoints.entries import (
    Chunk,
    Contents,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    checked_sizes,
)
from modelscope_cli.checkpoints.file_type import (
    CHECKPOINT_SUFFIXES,
    damaged,
    foreign_model,
    guess,
    is_safetensors,
    read_head,
    remedy,
)
from modelscope_cli.checkpoints.onnx_file import OnnxModel, is_onnx_file
from modelscope_cli.checkpoints.pickle_machine import Global, Opaque, PickleMachine
from modelscope_cli.checkpoints.safetensors_header import read_safetensors
from modelscope_cli.checkpoints.safety.known_names import KNOWN_NAMES
from modelscope_cli.checkpoints.tensor_refs import dtype_of, is_known, rebuild
from modelscope_cli.checkpoints.torch_file import read_torch
from modelscope_cli.checkpoints.tree import is_entry, lay_out, renamed_entry, under
from modelscope_cli.errors import CannotRunError, UsageError, quoted
from modelscope_cli.records.naming import some

METADATA = ".metadata"
# Room for some 300,000 tensors; parsed JSON takes up to 25 times the memory of its text.
MAX_INDEX_BYTES = 32 << 20
# Minimum bytes of `.metadata` per part of a tensor.
_CHUNK_BYTES = 8


def read_shards(index: Path, key: str | None = None) -> Contents:
    """Describe the tensors of all files named by a `*.index.json`."""
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


def read_distributed(folder: Path, key: str | None = None) -> Contents:
    """Describe the tensors of a `torch.distributed.checkpoint` folder by its `.metadata`."""
    path = folder / METADATA
    read_head(path)
    try:
        with path.open("rb") as file:
            machine = PickleMachine(file, rebuild)
            fields = _state(machine.read())
        storages = _storages(folder, fields["storage_data"])
        leaves: dict[str, Any] = {}
        n_left = path.stat().st_size // _CHUNK_BYTES  # many tensors may share one long list of parts
        for name, entry in fields["state_dict_metadata"].items():
            if entry.name.endswith(".TensorStorageMetadata"):
                leaves[str(name)] = tensor = _tensor(str(name), _state(entry), storages)
                n_left -= len(tensor.chunks)
                if n_left < 0:
                    raise ValueError("tensors in more parts than it describes")
            else:
                leaves[str(name)] = Opaque("an object, pickled")
        content = _nested(leaves, fields.get("planner_data"))
        foreign = tuple(name for name in machine.names if not is_known(name) and name not in KNOWN_NAMES)
        files = dict.fromkeys(storage.file for storage in storages.values())
        contents = Contents(folder, "torch.distributed", (), foreign=foreign, files=(path, *files))
        return lay_out(content, is_entry, renamed_entry, key, contents)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        reason = error if isinstance(error, ValueError) else "not metadata of torch.distributed"
        raise damaged(path, reason) from error


def _nested(leaves: dict[str, Any], paths: Any) -> dict[Any, Any]:
    """Undo the flattening of a state dict: `paths` has the keys of each name."""
    content: dict[Any, Any] = {}
    for name, leaf in leaves.items():
        path = paths.get(name) if isinstance(paths, dict) else None
        if not isinstance(path, tuple) or not path or not all(isinstance(key, str | int) for key in path):
            path = (name,)
        holder = content
        for key in path[:-1]:
            holder = holder.setdefault(key, {})
            if not isinstance(holder, dict):
                return leaves
        if path[-1] in holder:
            return leaves
        holder[path[-1]] = leaf
    return content


def _state(value: Any) -> dict[str, Any]:
    if isinstance(value, Opaque) and isinstance(value.state, dict):
        return value.state
    raise ValueError("not metadata of torch.distributed")


def _storages(folder: Path, data: dict[Any, Any]) -> dict[tuple[Any, ...], Storage]:
    """Return the storages by tensor name and first index of the chunk."""
    storages: dict[tuple[Any, ...], Storage] = {}
    sizes: dict[Path, int] = {}
    for key, value in data.items():
        index, info = _state(key), _state(value)
        begin, length = checked_sizes([info["offset"], info["length"]])
        file = folder / PurePath(info["relative_path"]).name
        if PurePath(info["relative_path"]).name != info["relative_path"]:
            raise ValueError(f"the file '{info['relative_path']}', outside the folder")
        if file not in sizes:
            sizes[file] = file.stat().st_size if file.is_file() else -1
        if begin + length > sizes[file]:
            raise ValueError(
                f"'{file.name}' is missing" if sizes[file] < 0 else f"'{file.name}' is cut short"
            )
        name, start = index["fqn"], checked_sizes(index.get("offset") or ())
        if not isinstance(name, str):
            raise ValueError("values that have no name")
        storages[name, start] = Storage(file, f"{name} {start}", begin, length)
    return storages


def _tensor(name: str, fields: dict[str, Any], storages: dict[tuple[Any, ...], Storage]) -> TensorEntry:
    properties = fields["properties"]
    state = properties.state if isinstance(properties, Opaque) else None
    dtype = state["dtype"] if isinstance(state, dict) else state[0] if isinstance(state, tuple) else None
    if not isinstance(dtype, Global):
        raise ValueError(f"no dtype for '{name}'")
    shape = checked_shape(fields["size"])
    chunks = []
    for chunk in map(_state, fields["chunks"]):
        start, part = checked_sizes(chunk["offsets"]), checked_shape(chunk["sizes"])
        storage = storages.get((name, start)) or storages.get((name, ()))
        if storage is None:
            raise ValueError(f"no values for '{name}'")
        if not len(start) == len(part) == len(shape):
            raise ValueError(f"a part of '{name}' with another number of dimensions")
        if any(at + n > size for at, n, size in zip(start, part, shape, strict=True)):
            raise ValueError(f"values beyond the end of '{name}'")
        chunks.append(Chunk(storage, start, part))
    if sum(math.prod(chunk.shape) for chunk in chunks) != math.prod(shape):
        raise ValueError(f"values that do not add up to the whole of '{name}'")
    return TensorEntry(name, shape, dtype_of(dtype), None, chunks=tuple(chunks))


INDEX = ".index.json"
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
            return read_distributed(path, key)
        file = checkpoint_in(path)
        contents = read_contents(file, key)
        note = f"read '{file.name}' of the folder" + (f", {contents.note}" if contents.note else "")
        return replace(contents, note=note)
    if path.name.endswith(INDEX):
        return read_shards(path, key)
    if path.exists() and not path.is_file():  # a pipe may block, and cannot be read twice
        raise CannotRunError(f"checkpoint '{path}' is not a plain file", f"ls -l {shlex.quote(str(path))}")
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
    """Tell whether a checkpoint has several files: an index of shards, or a distributed one's folder."""
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
            f"did you mean {quoted(str(folder / name) for name in inside[:_N_NAMED])}",
        )
    if (kind := foreign_model(folder)) is not None:
        raise CannotRunError(f"'{folder}' is not a checkpoint: it is {kind}", remedy(folder, b""))
    suffixes = " ".join(CHECKPOINT_SUFFIXES)
    missing = f"no '{METADATA}', no '*{INDEX}', and no {suffixes}"
    message = f"'{folder}' is a folder that does not hold a checkpoint: {missing}"
    raise CannotRunError(message, f"ls {shlex.quote(str(folder))}")


def is_checkpoint_name(name: str) -> bool:
    return name.endswith(INDEX) or name.lower().endswith((*CHECKPOINT_SUFFIXES, ".pth.tar"))
