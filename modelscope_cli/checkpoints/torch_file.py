"""Read what `torch.save` wrote, of either format, and bare pickles: descriptions only. Standard library."""

from pathlib import Path
from typing import IO, Any

from modelscope_cli.checkpoints.entries import BITS, Contents, Storage, TensorEntry
from modelscope_cli.checkpoints.file_type import damaged
from modelscope_cli.checkpoints.pickle_machine import MAX_BYTES, Machine
from modelscope_cli.checkpoints.torch_reducers import StorageRef, is_known, rebuild, storage_of
from modelscope_cli.checkpoints.tree import Locate, lay_out
from modelscope_cli.checkpoints.zip_directory import read_directory, read_entry

_MAGIC = 0x1950A86A20F9469CFC6C  # the first of the pickles in the format before torch 1.6


def read_torch(path: Path) -> Contents:
    """Describe the tensors of a torch file, and name what loading it in full would run.

    Raises:
        CannotRunError: damaged, or it contradicts itself (exit 4).
    """
    try:
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
            file.seek(0)
            kind, content, machine, locate = _read_zip(path, file) if is_zip else _read_pickles(path, file)
            tensors, beside, note = lay_out(content, locate)
    except (ValueError, OSError, MemoryError) as error:
        raise damaged(path, error) from error
    foreign = tuple(name for name in machine.names if not is_known(name))
    return Contents(path, kind, tensors, beside, foreign=foreign, note=note, files=(path,))


def read_saved_tensor(path: Path, file: IO[bytes]) -> TensorEntry:
    """Describe the one tensor that `torch.save` wrote into a part of `path`, given as a file of its own.

    Raises:
        ValueError: there is none, or it contradicts itself.
    """
    _, content, _, locate = _read_zip(path, file)
    tensors, _, _ = lay_out(content, locate)
    if len(tensors) != 1:
        raise ValueError(f"{len(tensors)} tensors where one was saved")
    return tensors[0]


def _read_zip(path: Path, file: IO[bytes]) -> tuple[str, Any, Machine, Locate]:
    entries = read_directory(file)
    name = next((name for name in entries if name.endswith("data.pkl") and name.count("/") < 2), None)
    if name is None:
        raise ValueError("a zip archive without the 'data.pkl' of torch")
    prefix = name.removesuffix("data.pkl")
    order = entries.get(f"{prefix}byteorder")
    if order is not None and read_entry(file, order, 16) != b"little":
        raise ValueError("its bytes are not in little-endian order")

    def locate(ref: StorageRef) -> Storage:
        entry = entries.get(f"{prefix}data/{ref.key}")
        if entry is None or entry.nbytes < ref.nbytes:
            n = entry.nbytes if entry else 0
            raise ValueError(f"{n} bytes for storage '{ref.key}', which has {ref.nbytes}")
        entry.check()
        return Storage(path, ref.key, entry.header, entry.nbytes, is_zipped=True)

    machine = Machine(read_entry(file, entries[name], MAX_BYTES), rebuild)
    return "torch", machine.read(), machine, locate


def _read_pickles(path: Path, file: IO[bytes]) -> tuple[str, Any, Machine, Locate]:
    machine = Machine(file, rebuild)
    content = machine.read()
    if content != _MAGIC:
        return "pickle", content, machine, _nowhere
    _, system = machine.read(), machine.read()
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise ValueError("its bytes are not in little-endian order")
    content = machine.read()
    storages = _storages_behind(path, file, machine, machine.read())

    def locate(ref: StorageRef) -> Storage:
        if ref.key not in storages or storages[ref.key].nbytes < ref.nbytes:
            raise ValueError(f"no {ref.nbytes} bytes for storage '{ref.key}'")
        return storages[ref.key]

    return "torch (before 1.6)", content, machine, locate


def _storages_behind(path: Path, file: IO[bytes], machine: Machine, keys: Any) -> dict[str, Storage]:
    """Each storage follows the pickles as eight bytes of length, in elements, and its values."""
    # Beside storages, the sources of pickled modules are referred to.
    named = [ref for ref in machine.references if isinstance(ref.id, tuple) and ref.id[:1] == ("storage",)]
    bits = {ref.key: BITS[ref.dtype] for ref in map(storage_of, named)}
    n_file = path.stat().st_size
    found: dict[str, Storage] = {}
    at = file.tell()
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("storages that have no names")
    for key in keys:
        file.seek(at)
        length = file.read(8)
        nbytes = int.from_bytes(length, "little") * bits.get(key, 8) // 8
        if len(length) < 8 or at + 8 + nbytes > n_file:
            raise ValueError(f"storage '{key[:40]}' beyond the end of the file")
        found[key] = Storage(path, key, at + 8, nbytes)
        at += 8 + nbytes
    return found


def _nowhere(ref: StorageRef) -> Storage:
    raise ValueError("a pickle whose values stand elsewhere")
