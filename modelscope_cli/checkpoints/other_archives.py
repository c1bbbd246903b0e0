"""Zip archives that `torch.save` did not write: NumPy's .npz, torch.export's .pt2, and others. Standard library."""

import contextlib
import io
import json
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.entries import (
    BITS,
    TORCH_EXPORT,
    Contents,
    Storage,
    TensorEntry,
    UnsupportedError,
    checked_shape,
    checked_sizes,
)
from modelscope_cli.checkpoints.numpy_arrays import ArrayInfo, read_npy_header
from modelscope_cli.checkpoints.pickle_machine import MAX_BYTES, Machine
from modelscope_cli.checkpoints.torch_reducers import is_known, rebuild
from modelscope_cli.checkpoints.zip_directory import ZipEntry, data_start, read_entry
from modelscope_cli.plain_text import plain

_N_HEAD = 1 << 17
# What deflate can make of one byte, at most: https://zlib.net/zlib_tech.html
_MAX_RATIO = 1032
_MAX_CONFIG = 100_000_000
_CONFIG = re.compile(r"(?:[^/]+/)?data/weights/(?P<model>[^/]+)_weights_config\.json")
# `torch._export.serde.schema.ScalarType`, by number.
_EXPORTED = {
    **{1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float16", 7: "float32", 8: "float64"},
    **{9: "complex32", 10: "complex64", 11: "complex128", 12: "bool", 13: "bfloat16", 28: "uint16"},
    **{29: "float8_e4m3fn", 30: "float8_e5m2", 31: "float8_e4m3fnuz", 32: "float8_e5m2fnuz"},
    **{33: "float8_e8m0fnu", 34: "uint32", 35: "uint64"},
}
# Entries that say of which format an archive is.
_TELLTALE = {
    "[Content_Types].xml": "an Office document",
    "META-INF/MANIFEST.MF": "a Java archive",
    "model.weights.h5": "a model of Keras",
    "serialized_exported_program.json": "a program of torch.export from before torch 2.8",
}


def read_archive(path: Path, file: IO[bytes], entries: Mapping[str, ZipEntry]) -> Contents:
    """Describe the tensors of a zip archive that is not one of `torch.save`.

    Raises:
        UnsupportedError: it is sound, and of another format.
        ValueError: damaged, or it contradicts itself.
    """
    configs = [found for name in entries if (found := _CONFIG.fullmatch(name))]
    if configs:
        return _read_exported(path, file, entries, {found["model"]: found[0] for found in configs})
    if entries and all(name.endswith(".npy") for name in entries):
        return _read_npz(path, file, entries)
    known = next((what for name, what in _TELLTALE.items() if any(n.endswith(name) for n in entries)), None)
    first = plain(next(iter(entries), ""))[:40]
    raise UnsupportedError(f"it is {known}" if known else f"it is a zip archive of other things ('{first}')")


def _read_npz(path: Path, file: IO[bytes], entries: Mapping[str, ZipEntry]) -> Contents:
    tensors: list[TensorEntry] = []
    beside: dict[str, str] = {}
    foreign: dict[str, None] = {}
    for entry in entries.values():
        name = entry.name.removesuffix(".npy")
        begin = data_start(file, entry.header)
        file.seek(begin)
        head = io.BytesIO(
            file.read(min(_N_HEAD, entry.nbytes)) if entry.is_stored else _inflate(file, entry, _N_HEAD)
        )
        info, n_header = read_npy_header(head)
        if info.dtype is not None:
            tensors.append(_array(path, name, entry, info, begin, n_header))
            continue
        beside[plain(name)] = f"a NumPy array of dtype '{plain(info.kind)}'"
        if info.has_objects:  # they follow as a pickle
            file.seek(begin)
            data = read_entry(file, entry, MAX_BYTES) if entry.is_stored else _inflate(file, entry, MAX_BYTES)
            machine = Machine(data[n_header:], rebuild, keeps_long=True)
            with contextlib.suppress(ValueError):  # what is wrong with it, the scan says
                machine.read()
            foreign |= machine.names
    names = tuple(name for name in foreign if not is_known(name))
    return Contents(path, "NumPy (.npz)", tuple(tensors), beside, foreign=names, files=(path,))


def _array(path: Path, name: str, entry: ZipEntry, info: ArrayInfo, begin: int, n_header: int) -> TensorEntry:
    assert info.dtype is not None
    nbytes = math.prod(info.shape) * BITS[info.dtype] // 8
    room = entry.nbytes if entry.is_stored else entry.nbytes * _MAX_RATIO
    if n_header + nbytes > room:
        raise ValueError(f"{room - n_header} bytes for '{name}', whose shape needs {nbytes}")
    special = "big-endian" if info.is_big_endian else None
    if entry.is_stored:
        storage = Storage(path, name, begin + n_header, nbytes)
    else:
        storage = Storage(path, name, begin, nbytes, packed=entry.nbytes, skip=n_header)
    return TensorEntry(name, info.shape, info.dtype, storage, 0, info.stride, special=special)


def _inflate(file: IO[bytes], entry: ZipEntry, limit: int) -> bytes:
    """Return the first bytes of a compressed entry, from where the file stands."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(file.read(entry.nbytes), limit)
    except zlib.error as error:
        raise UnsupportedError(f"'{entry.name}', encrypted or compressed in an uncommon way") from error


def _read_exported(
    path: Path, file: IO[bytes], entries: Mapping[str, ZipEntry], configs: Mapping[str, str]
) -> Contents:
    """The weights of each model lie as bare bytes beside a JSON that says what they are.

    The format: https://docs.pytorch.org/docs/stable/export/pt2_archive.html
    """
    tensors, beside = [], {}
    try:
        for model, config in configs.items():
            folder = config.rpartition("/")[0]
            weights = json.loads(read_entry(file, entries[config], _MAX_CONFIG))["config"]
            for own, weight in weights.items():
                name = own if len(configs) == 1 else f"{model}.{own}"
                if weight["use_pickle"]:
                    beside[plain(name)] = "a tensor of a class of its own, pickled"
                else:
                    entry = entries[f"{folder}/{weight['path_name']}"]
                    tensors.append(_weight(path, name, entry, weight["tensor_meta"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("weights without a description") from error
    return Contents(path, TORCH_EXPORT, tuple(tensors), beside, files=(path,), inside=tuple(beside))


def _weight(path: Path, name: str, entry: ZipEntry, meta: Mapping[str, Any]) -> TensorEntry:
    dtype = _EXPORTED.get(meta["dtype"])
    if dtype is None:
        raise UnsupportedError(f"'{name}', of a dtype with number {meta['dtype']}")
    entry.check()
    shape = checked_shape([size["as_int"] for size in meta["sizes"]])
    stride = checked_sizes([step["as_int"] for step in meta["strides"]])
    (offset,) = checked_sizes([meta["storage_offset"]["as_int"]])
    if len(shape) != len(stride):
        raise ValueError("a stride of another length than the shape")
    last = offset + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * BITS[dtype] // 8 > entry.nbytes:
        raise ValueError(f"a tensor of shape {list(shape)} beyond the end of its storage")
    storage = Storage(path, entry.name, entry.header, entry.nbytes, is_zipped=True)
    return TensorEntry(name, shape, dtype, storage, offset, stride)
