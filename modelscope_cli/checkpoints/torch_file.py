"""Read what `torch.save` wrote, of either format, and bare pickles: descriptions only. Standard library."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.entries import (
    TORCH_SCRIPT,
    Contents,
    Storage,
    TensorEntry,
    UnsupportedError,
)
from modelscope_cli.checkpoints.file_type import damaged
from modelscope_cli.checkpoints.legacy import LEGACY_MAGIC, NestedCalls, read_legacy
from modelscope_cli.checkpoints.numpy_arrays import PickledArray
from modelscope_cli.checkpoints.other_archives import read_archive
from modelscope_cli.checkpoints.pickle_machine import MAX_BYTES, Machine
from modelscope_cli.checkpoints.tensor_refs import StorageRef, TensorRef
from modelscope_cli.checkpoints.torch_reducers import is_known
from modelscope_cli.checkpoints.tree import ToEntry, lay_out, under
from modelscope_cli.checkpoints.zip_directory import (
    ZipEntry,
    as_torch_compares,
    read_directory,
    read_entry,
    torch_records,
)

Locate = Callable[[StorageRef], Storage]


@dataclass(frozen=True, slots=True)
class _Read:
    """What a pickle describes, every function and class it names, and the way to its storages."""

    kind: str
    content: Any
    names: Mapping[str, None]
    locate: Locate


def read_torch(path: Path, key: str | None = None) -> Contents:
    """Describe the tensors of a torch file or a pickle, and name what loading it in full would run.

    Raises:
        UsageError: nothing goes by this key (exit 2).
        CannotRunError: damaged, or it contradicts itself (exit 4).
    """
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
            file.seek(0)
            entries = read_directory(file) if is_zip else {}
            records = torch_records(list(entries.values()))
            if is_zip and "data.pkl" not in records:
                return under(read_archive(path, file, entries), key)
            read = _read_zip(path, file, records) if is_zip else _read_pickles(path, file)
            found = lay_out(read.content, is_tensor, entries_of(path, read.locate), key, str(path))
    except (ValueError, OSError, MemoryError) as error:
        raise damaged(path, error) from error
    foreign = tuple(name for name in read.names if not is_known(name))
    return Contents(
        path,
        read.kind,
        found.tensors,
        found.beside,
        foreign=foreign,
        note=found.note,
        files=(path,),
        inside=found.inside,
    )


def read_saved_tensor(path: Path, file: IO[bytes]) -> TensorEntry:
    """Describe the one tensor that `torch.save` wrote into a part of `path`, given as a file of its own.

    Raises:
        ValueError: there is none, or it contradicts itself.
    """
    read = _read_zip(path, file, torch_records(list(read_directory(file).values())))
    tensors = lay_out(read.content, is_tensor, entries_of(path, read.locate), None, str(path)).tensors
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors where one was saved")
    return tensors[0]


def is_tensor(value: Any) -> bool:
    """Tell what a pickle describes as a tensor, of torch or of NumPy, from everything else."""
    if isinstance(value, PickledArray):
        info = value.info()
        return info is not None and info.dtype is not None
    return isinstance(value, TensorRef)


def entries_of(path: Path, locate: Locate) -> ToEntry:
    """Return what describes a tensor of a pickle, whose storages `locate` finds."""
    located: dict[StorageRef, Storage] = {}

    def to_entry(name: str, value: Any) -> TensorEntry:
        if isinstance(value, PickledArray):
            return _array(path, name, value)
        storage = None
        if value.storage is not None and value.special is None and value.storage.data is not None:
            ref = value.storage
            storage = Storage(path, ref.key, 0, ref.nbytes, data=ref.data)
        elif value.storage is not None:
            storage = located.get(value.storage) or locate(value.storage)
            located[value.storage] = storage
        return TensorEntry(
            name,
            value.shape,
            value.dtype,
            storage,
            value.offset,
            value.stride,
            special=value.special,
            is_conj=value.is_conj,
            is_neg=value.is_neg,
            held=value.held,
        )

    return to_entry


def _array(path: Path, name: str, array: PickledArray) -> TensorEntry:
    info, data = array.info(), array.data
    assert info is not None
    assert info.dtype is not None
    special = "big-endian" if info.is_big_endian else None
    storage = Storage(path, str(id(data)), 0, len(data), data=data)
    return TensorEntry(name, info.shape, info.dtype, storage, 0, info.stride, special=special)


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

    calls = NestedCalls()
    machine = Machine(read_entry(file, records["data.pkl"], MAX_BYTES), calls, keeps_long=True)
    kind = TORCH_SCRIPT if "constants.pkl" in records else "torch"
    return _Read(kind, machine.read(), {**machine.names, **calls.names}, locate)


def _read_pickles(path: Path, file: IO[bytes]) -> _Read:
    calls = NestedCalls()
    machine = Machine(file, calls, keeps_long=True)
    content = _content(machine)
    if content != LEGACY_MAGIC:
        return _Read("pickle", content, {**machine.names, **calls.names}, _nowhere)
    content, storages = read_legacy(path, file, machine)

    def locate(ref: StorageRef) -> Storage:
        if ref.key not in storages or storages[ref.key].nbytes < ref.nbytes:
            raise ValueError(f"no {ref.nbytes} bytes for storage '{ref.key}'")
        return storages[ref.key]

    return _Read("torch (before 1.6)", content, {**machine.names, **calls.names}, locate)


def _content(machine: Machine) -> Any:
    """Return what the first pickle of a file holds.

    Raises:
        UnsupportedError: a file of joblib, which puts the bytes of arrays between the operations of the pickle.
    """
    try:
        return machine.read()
    except ValueError as error:
        if any(name.startswith("joblib.numpy_pickle") for name in machine.names):
            raise UnsupportedError("it is a file of joblib, with arrays that only joblib can load") from error
        raise


def _nowhere(ref: StorageRef) -> Storage:
    raise ValueError("a pickle whose values are elsewhere")
