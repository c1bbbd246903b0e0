"""The format of `torch.save` before torch 1.6, which also stands inside plain pickles of tensors. Standard library.

Five pickles (a magic number, a version, the system, the content, the keys of the storages), then the storages.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.entries import BITS, Storage, UnsupportedError, checked_sizes
from modelscope_cli.checkpoints.numpy_arrays import bytes_of
from modelscope_cli.checkpoints.pickle_machine import Machine
from modelscope_cli.checkpoints.tensor_refs import StorageRef, dtype_of_storage, storage_of
from modelscope_cli.checkpoints.torch_reducers import rebuild

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # the first of the pickles
_NESTED = "torch.storage._load_from_bytes"
_MAX_NESTING = 3


def read_legacy(path: Path, file: IO[bytes], machine: Machine) -> tuple[Any, dict[str, Storage]]:
    """Return the content and the storages by key, from behind the magic number.

    Raises:
        ValueError: damaged, or it contradicts itself.
    """
    _, system = machine.read(), machine.read()
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise UnsupportedError("its bytes are not in little-endian order")
    content = machine.read()
    return content, _storages_behind(path, file, machine, machine.read())


class NestedCalls:
    """What functions in a pickle would return, those that unpickle bytes inside it among them.

    A tensor that is pickled without `torch.save` keeps its storage so.

    Attributes:
        names: every function and class that the pickles inside name.
    """

    def __init__(self, depth: int = 0) -> None:
        self.names: dict[str, None] = {}
        self._depth = depth
        # By where the bytes are: a file may name the same ones again and again.
        self._found: dict[int, tuple[object, StorageRef]] = {}

    def __call__(self, name: str, args: Any) -> Any:
        if name == _NESTED and isinstance(args, tuple) and len(args) == 1:
            return self._storage(bytes_of(args[0]))
        return rebuild(name, args)

    def _storage(self, data: bytes | bytearray | str) -> StorageRef:
        if id(data) not in self._found:
            if self._depth == _MAX_NESTING:
                raise UnsupportedError(f"pickles inside pickles, more than {_MAX_NESTING} deep")
            self._found[id(data)] = data, self._read(data)
        return self._found[id(data)][1]

    def _read(self, data: bytes | bytearray | str) -> StorageRef:
        file = io.BytesIO(data.encode("latin-1") if isinstance(data, str) else data)
        calls = NestedCalls(self._depth + 1)
        machine = Machine(file, calls, keeps_long=True)
        try:
            if machine.read() != LEGACY_MAGIC:
                raise UnsupportedError(f"a storage that only running '{_NESTED}' could read")
            content, storages = read_legacy(Path(), file, machine)
        finally:
            self.names |= machine.names | calls.names
        ref = storage_of(content)
        storage = storages.get(ref.key)
        if storage is None or storage.nbytes < ref.nbytes:
            raise ValueError(f"no {ref.nbytes} bytes for storage '{ref.key[:40]}'")
        inside = file.getvalue()[storage.position : storage.position + storage.nbytes]
        return StorageRef(f"{id(data)}", ref.dtype, storage.nbytes, ref.offset, inside)


def spans_of_tar(file: IO[bytes], *, is_storages: bool) -> Iterator[tuple[int, int]]:
    """Yield where pickles begin and end in a member of the tar format before torch 0.4; values are between them.

    Of `storages`: a number, for each storage a pickle and its values, then a pickle of views. Of `tensors`: a
    number, and for each tensor a pickle and its sizes.

    Raises:
        ValueError: where the next one begins cannot be told.
    """
    file.seek(0)
    n = Machine(file, rebuild).read()
    yield 0, file.tell()
    for _ in range(*checked_sizes([n])):
        start = file.tell()
        args = Machine(file, rebuild).read()
        at = file.tell()
        yield start, at
        if not isinstance(args, tuple) or len(args) != 3:
            raise ValueError("something else where a storage or a tensor should be")
        file.seek(at)
        n_elements = int.from_bytes(file.read(8 if is_storages else 4), "little")
        at += 8 + n_elements * (BITS[dtype_of_storage(args[2])] // 8) if is_storages else 16 + 16 * n_elements
        file.seek(at)
    if is_storages:
        start = file.tell()
        Machine(file, rebuild).read()
        yield start, file.tell()


def _storages_behind(path: Path, file: IO[bytes], machine: Machine, keys: Any) -> dict[str, Storage]:
    """Each storage follows the pickles as eight bytes of length, in elements, and its values."""
    # Beside storages, the sources of pickled modules are referred to.
    named = [ref for ref in machine.references if isinstance(ref.id, tuple) and ref.id[:1] == ("storage",)]
    bits = {ref.key: max(8, BITS[ref.dtype]) for ref in map(storage_of, named)}
    at = file.tell()
    n_file = file.seek(0, io.SEEK_END)
    found: dict[str, Storage] = {}
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("storages without names")
    for key in keys:
        file.seek(at)
        length = file.read(8)
        nbytes = int.from_bytes(length, "little") * bits.get(key, 8) // 8
        if len(length) < 8 or at + 8 + nbytes > n_file:
            raise ValueError(f"storage '{key[:40]}' beyond the end of the file")
        found[key] = Storage(path, key, at + 8, nbytes)
        at += 8 + nbytes
    return found
