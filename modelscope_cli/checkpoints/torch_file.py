"""Read `torch.save` files of both formats, and torch.export archives. Standard library.

Before torch 1.6: five pickles (a magic number, a version, the system, the content, the keys of the storages), then
the storages. Since then: a zip archive with `data.pkl`.
"""

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.entries import (
    BITS,
    TORCH_EXPORT,
    TORCH_SCRIPT,
    Contents,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    checked_sizes,
)
from modelscope_cli.checkpoints.file_type import damaged
from modelscope_cli.checkpoints.opcodes import MAX_BYTES
from modelscope_cli.checkpoints.pickle_machine import PickleMachine
from modelscope_cli.checkpoints.tensor_refs import StorageRef, TensorRef, is_known, rebuild, storage_of
from modelscope_cli.checkpoints.tree import ToEntry, lay_out, under
from modelscope_cli.checkpoints.zip_directory import (
    ZipEntry,
    as_torch_compares,
    read_directory,
    read_entry,
    torch_records,
)
from modelscope_cli.plain_text import plain

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first of the pickles


def read_legacy(path: Path, file: IO[bytes], machine: PickleMachine) -> tuple[Any, dict[str, Storage]]:
    """Return the content and the storages by key, after the magic number was read."""
    _, system = machine.read(), machine.read()
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise UnsupportedError("its bytes are not in little-endian order")
    content = machine.read()
    return content, _storages_behind(path, file, machine, machine.read())


def _storages_behind(path: Path, file: IO[bytes], machine: PickleMachine, keys: Any) -> dict[str, Storage]:
    """Locate the storages after the pickles: eight bytes of length in elements, then the values, each."""
    # References other than storages are the sources of pickled modules.
    named = [ref for ref in machine.references if isinstance(ref.id, tuple) and ref.id[:1] == ("storage",)]
    bits = {ref.key: max(8, BITS[ref.dtype]) for ref in map(storage_of, named)}
    at = file.tell()
    n_file = file.seek(0, io.SEEK_END)
    storages: dict[str, Storage] = {}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("storages without names")
    for key in keys:
        file.seek(at)
        length = file.read(8)
        nbytes = int.from_bytes(length, "little") * bits.get(key, 8) // 8
        if len(length) < 8 or at + 8 + nbytes > n_file:
            raise ValueError(f"storage '{key[:40]}' beyond the end of the file")
        storages[key] = Storage(path, key, at + 8, nbytes)
        at += 8 + nbytes
    return storages


_MAX_CONFIG = 100_000_000
_CONFIG = re.compile(r"(?:[^/]+/)?data/weights/(?P<model>[^/]+)_weights_config\.json")
# `torch._export.serde.schema.ScalarType`, by number.
_EXPORTED = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16"},
    **{29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz"},
    **{33: "float8_e8m0fnu", 34: "uint32", 35: "uint64"},
}
# Entries that identify the format of an archive.
_TELLTALE = {
    "[Content_Types].xml": "an Office document",
    "META-INF/MANIFEST.MF": "a Java archive",
    "model.weights.h5": "a model of Keras",
    "serialized_exported_program.json": "a torch.export program from before torch 2.8",
}


def read_archive(path: Path, file: IO[bytes], entries: Mapping[str, ZipEntry]) -> Contents:
    """Describe the tensors of a zip archive that is not one of `torch.save`."""
    configs = [match for name in entries if (match := _CONFIG.fullmatch(name))]
    if configs:
        return _read_exported(path, file, entries, {match["model"]: match[0] for match in configs})
    if entries and all(name.endswith(".npy") for name in entries):
        raise UnsupportedError("it is an archive of NumPy arrays, which numpy.load reads")
    kind = next((label for name, label in _TELLTALE.items() if any(n.endswith(name) for n in entries)), None)
    first = plain(next(iter(entries), ""))[:40]
    raise UnsupportedError(f"it is {kind}" if kind else f"it is a zip archive without weights ('{first}')")


def _read_exported(
    path: Path, file: IO[bytes], entries: Mapping[str, ZipEntry], configs: Mapping[str, str]
) -> Contents:
    """Describe raw weights by https://docs.pytorch.org/docs/stable/export/pt2_archive.html: a JSON entry each."""
    tensors, others = [], {}
    try:
        for model, config in configs.items():
            folder = config.rpartition("/")[0]
            weights = json.loads(read_entry(file, entries[config], _MAX_CONFIG))["config"]
            for key, weight in weights.items():
                name = key if len(configs) == 1 else f"{model}.{key}"
                if weight["use_pickle"]:
                    others[plain(name)] = "a pickled tensor of a custom class"
                else:
                    entry = entries[f"{folder}/{weight['path_name']}"]
                    tensors.append(_weight(path, name, entry, weight["tensor_meta"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("weights without a description") from error
    return Contents(path, TORCH_EXPORT, tuple(tensors), others, files=(path,), inside=tuple(others))


def _weight(path: Path, name: str, entry: ZipEntry, meta: Mapping[str, Any]) -> TensorEntry:
    dtype = _EXPORTED.get(meta["dtype"])
    if dtype is None:
        raise UnsupportedError(f"'{name}', of a dtype with number {meta['dtype']}")
    entry.check()
    shape = checked_shape([size["as_int"] for size in meta["sizes"]])
    stride = checked_sizes([step["as_int"] for step in meta["strides"]])
    (offset,) = checked_sizes([meta["storage_offset"]["as_int"]])
    if len(shape) != len(stride):
        raise ValueError("stride and shape have different lengths")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * BITS[dtype] // 8 > entry.nbytes:
        raise ValueError(f"a tensor of shape {list(shape)} beyond the end of its storage")
    storage = Storage(path, entry.name, entry.header, entry.nbytes, is_zipped=True)
    return TensorEntry(name, shape, dtype, storage, offset, stride)


Locate = Callable[[StorageRef], Storage]


@dataclass(frozen=True, slots=True)
class _Read:
    """The content of a pickle, its imported names, and how to locate its storages."""

    kind: str
    content: Any
    names: Mapping[str, None]
    locate: Locate


def read_torch(path: Path, key: str | None = None) -> Contents:
    """Describe the tensors of a torch file or a pickle, and the names that loading it in full would run."""
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
            file.seek(0)
            entries = read_directory(file) if is_zip else {}
            records = torch_records(list(entries.values()))
            if is_zip and "data.pkl" not in records:
                return under(read_archive(path, file, entries), key)
            read = _read_zip(path, file, records) if is_zip else _read_pickles(path, file)
            foreign = tuple(name for name in read.names if not is_known(name))
            contents = Contents(path, read.kind, (), foreign=foreign, files=(path,))
            return lay_out(read.content, is_tensor, entries_of(path, read.locate), key, contents)
    except (ValueError, OSError, MemoryError) as error:
        raise damaged(path, error) from error


def is_tensor(value: Any) -> bool:
    """Tell whether a value in a pickle is a tensor."""
    return isinstance(value, TensorRef)


def entries_of(path: Path, locate: Locate) -> ToEntry:
    """Return a function that turns a pickle's tensor into an entry; `locate` finds its storage."""
    located: dict[StorageRef, Storage] = {}

    def to_entry(name: str, value: Any) -> TensorEntry:
        storage = None
        if value.storage is not None:
            storage = located.get(value.storage) or locate(value.storage)
            located[value.storage] = storage
        same = {"special": value.special, "held": value.held}
        return TensorEntry(name, value.shape, value.dtype, storage, value.offset, value.stride, **same)

    return to_entry


def _read_zip(path: Path, file: IO[bytes], records: Mapping[str, ZipEntry]) -> _Read:
    if "data.pkl" not in records:
        raise ValueError("a zip archive without the 'data.pkl' of torch")
    order = records.get("byteorder")
    if order is not None and read_entry(file, order, 16) != b"little":
        raise UnsupportedError("its bytes are not in little-endian order")

    def locate(ref: StorageRef) -> Storage:
        entry = records.get(as_torch_compares(f"data/{ref.key}"))
        if entry is None or entry.nbytes < ref.nbytes:
            n = entry.nbytes if entry else 0
            raise ValueError(f"{n} bytes for storage '{ref.key}', which has {ref.nbytes}")
        entry.check()
        return Storage(path, ref.key, entry.header, entry.nbytes, is_zipped=True)

    machine = PickleMachine(read_entry(file, records["data.pkl"], MAX_BYTES), rebuild)
    kind = TORCH_SCRIPT if "constants.pkl" in records else "torch"
    return _Read(kind, machine.read(), machine.names, locate)


def _read_pickles(path: Path, file: IO[bytes]) -> _Read:
    machine = PickleMachine(file, rebuild)
    if machine.read() != LEGACY_MAGIC:
        raise UnsupportedError("it is a pickle that torch.save did not write")
    content, storages = read_legacy(path, file, machine)

    def locate(ref: StorageRef) -> Storage:
        if ref.key not in storages or storages[ref.key].nbytes < ref.nbytes:
            raise ValueError(f"fewer than {ref.nbytes} bytes for storage '{ref.key}'")
        return storages[ref.key]

    return _Read("torch (before 1.6)", content, machine.names, locate)
