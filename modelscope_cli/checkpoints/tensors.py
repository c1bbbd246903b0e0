"""Read the tensors of a checkpoint without running code from it, and explain unreadable files."""

import hashlib
import io
import pickle
import re
import shlex
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Parameter

from modelscope_cli.checkpoints.entries import BITS, Contents, Storage, TensorEntry
from modelscope_cli.checkpoints.file_type import (
    damaged,
    guess,
    is_onnx_file,
    is_safetensors,
    no_tensors,
    read_head,
    remedy,
)
from modelscope_cli.checkpoints.reading import checkpoint_in, is_several, read_contents
from modelscope_cli.checkpoints.safety.scan import scan_checkpoint
from modelscope_cli.checkpoints.zip_directory import check_records, data_start
from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.run import Notice
from modelscope_cli.records.weights import warnings_of


def refused(path: Path, reason: str) -> CannotRunError:
    """Return the error for a file that neither torch (weights only, for `reason`) nor this package can read."""
    try:
        foreign = read_contents(path).foreign
    except CannotRunError:
        foreign = ()
    named = re.search(r"GLOBAL ([\w.]+)", reason)
    name = named[1] if named else next(iter(foreign), None)
    if "TorchScript" in reason:
        problem = "it is a TorchScript program"
    else:
        problem = f"it would run '{name}'" if name else "it holds more than tensors"
    hint = f"modelscope weights {shlex.quote(str(path))}   lists what loading it would run"
    return CannotRunError(f"checkpoint '{path}' is not loaded: {problem}", hint)


def unwrap_state(
    content: Any, key: str | None = None, source: str = ""
) -> tuple[dict[str, Tensor], str | None]:
    """Return the named tensors inside `content`, and a note on where they were and what else was there.

    The dict is empty if there are none, and keeps the `_metadata` (module versions) saved by torch.
    """
    from modelscope_cli.checkpoints.tree import find_state

    selected = find_state(content, lambda value: isinstance(value, Tensor), key, source)
    state = OrderedDict(selected.named)  # not a dict: an OrderedDict can carry `_metadata`
    if hasattr(selected.content, "_metadata"):
        vars(state)["_metadata"] = selected.content._metadata
    return state, selected.note()


def read_values(entry: TensorEntry, open_file: IO[bytes] | None = None) -> Tensor:
    """Return a tensor on the CPU with the entry's shape, dtype and stride.

    Args:
        open_file: the file of its storage, if already open.
    """
    if entry.special is not None:
        raise TypeError(f"{entry.special}: its values are not read")
    if entry.storage is None:
        raise TypeError("a tensor on meta has no values")
    try:
        if open_file is not None or entry.storage.data is not None:
            return _read(open_file or io.BytesIO(), entry)
        with entry.storage.file.open("rb") as file:
            return _read(file, entry)
    except (OSError, ValueError) as error:
        raise damaged(entry.storage.file, error) from error


def each_with_file(entries: Iterable[TensorEntry]) -> Iterator[tuple[TensorEntry, IO[bytes] | None]]:
    """Yield each entry with its open file, reused for consecutive entries in the same file."""
    current: Path | None = None
    file: IO[bytes] | None = None
    with ExitStack() as stack:
        for entry in entries:
            path = entry.storage.file if entry.storage else None
            if path is not None and path != current:
                stack.close()
                try:
                    if entry.storage and entry.storage.is_zipped:
                        check_records(path)
                    file = stack.enter_context(path.open("rb"))
                except (OSError, ValueError) as error:
                    raise damaged(path, error) from error
                current = path
            yield entry, file if path is not None else None


def _read(file: IO[bytes], entry: TensorEntry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    storage = entry.storage
    if storage is None or entry.numel == 0:
        return torch.empty(entry.shape, dtype=dtype)
    stride = entry.stride or torch.empty(entry.shape, device="meta").stride()
    last = sum((n - 1) * step for n, step in zip(entry.shape, stride, strict=True))
    n_element = BITS[entry.dtype] // 8
    data = _bytes(file, storage, entry.offset * n_element, (last + 1) * n_element)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).as_strided(entry.shape, stride)


def _bytes(file: IO[bytes], storage: Storage, begin: int, nbytes: int) -> bytearray:
    if storage.data is not None:
        data = bytearray(storage.data[begin : begin + nbytes])
    else:
        start = data_start(file, storage.position) if storage.is_zipped else storage.position
        file.seek(start + begin)
        data = bytearray(nbytes)
        del data[file.readinto(data) :]  # type: ignore[attr-defined]
    if len(data) < nbytes:
        raise ValueError(f"it ends within '{storage.key}'")
    return data


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Named tensors on the CPU, mapped from the file where its format allows."""

    path: Path  # the file
    state: dict[str, Tensor]  # the tensors by name, unwrapped from any nesting
    metadata: dict[str, str]  # of a safetensors file; else empty
    sha256: str  # of the file; of the index if sharded
    notes: tuple[str, ...]  # one line on how the tensors were nested, if they were
    # The code that loading the file in full would run, if it was read without
    warnings: tuple[Notice, ...] = ()
    class_names: tuple[str, ...] | None = None  # saved beside the tensors, in order
    image_size: int | None = None  # as in `Contents`


def read_checkpoint(path: Path, key: str | None = None, contents: Contents | None = None) -> Checkpoint:
    """Read the named tensors of a safetensors or torch file, told apart by content, of shards or of a folder.

    A file that torch does not load as weights only is read from its bytes, without running any of it.

    Args:
        key: key of the tensors; None for the state dict at its usual place.
        contents: the headers, if already read.
    """
    if path.is_dir() and not is_several(path):
        file = checkpoint_in(path)
        checkpoint = read_checkpoint(file, key)
        return replace(checkpoint, notes=(f"checkpoint: read '{file.name}' of the folder", *checkpoint.notes))
    if is_several(path) or is_onnx_file(path):
        return _from_contents(contents or read_contents(path, key))
    head = read_head(path)
    metadata: dict[str, str] = {}
    if is_safetensors(head) or path.suffix.lower() == ".safetensors":
        content, metadata = _read_safetensors(path)
    else:
        _check_head(path, head)
        try:
            content = _load_weights_only(path, head)
        except Exception as error:  # a damaged pickle can raise anything; no code of the file has run
            return _read_inertly(path, key, contents, error)
    state, note = unwrap_state(content, key, str(path))
    # torch also loads classes that this process has imported, such as DTensor.
    if any(type(tensor) not in (Tensor, Parameter) for tensor in state.values()):
        return _from_contents(contents or read_contents(path, key))
    from modelscope_cli.checkpoints.tree import class_names, image_size

    if not state:
        raise no_tensors(path, content if isinstance(content, dict) else ())
    notes = [f"checkpoint: {note}"] if note else []
    names = _class_names(class_names(content), state, notes)
    size = image_size(content) or image_size(metadata)
    return Checkpoint(path, state, metadata, file_sha256(path), tuple(notes), (), names, size)


def read_torch_file(path: Path) -> Any:
    """Return the content of a `torch.save` file: tensors and plain containers only, on the CPU."""
    head = read_head(path)
    _check_head(path, head)
    try:
        return _load_weights_only(path, head)
    except Exception as error:  # a damaged pickle can raise anything; no code of the file has run
        if isinstance(error, pickle.UnpicklingError) or "TorchScript" in str(error):
            raise refused(path, str(error)) from error
        reason = re.split(r"\.\s|\n", str(error).strip())[0] or type(error).__name__
        raise damaged(path, reason) from error


def _check_head(path: Path, head: bytes) -> None:
    if not head.startswith((b"PK\x03\x04", b"\x80")):
        raise CannotRunError(f"'{path}' is not a checkpoint: {guess(head, path=path)}", remedy(path, head))


def _load_weights_only(path: Path, head: bytes) -> Any:
    is_zip = head.startswith(b"PK")  # the older format cannot be mapped
    if is_zip:
        check_records(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)


def _read_inertly(path: Path, key: str | None, contents: Contents | None, reason: Exception) -> Checkpoint:
    """Read a file that torch, for `reason`, did not load as weights only."""
    try:
        contents = contents or read_contents(path, key)
    except CannotRunError as error:
        if "TorchScript" in str(reason):
            raise refused(path, str(reason)) from reason
        raise error from reason
    if not contents.tensors:
        raise refused(path, str(reason)) from reason
    return _from_contents(contents)


def _from_contents(contents: Contents) -> Checkpoint:
    """Read all tensors of a checkpoint whose headers were read."""
    state = {}
    hint = f"modelscope weights {shlex.quote(str(contents.path))}"
    for tensor, file in each_with_file(contents.tensors):
        try:
            state[tensor.name] = read_values(tensor, file)
        except TypeError as error:
            message = f"checkpoint '{contents.path}' is not loaded: '{tensor.name}' is {error}"
            raise CannotRunError(message, hint) from error
    if not state:
        raise no_tensors(contents.path)
    notes = [f"checkpoint: {contents.note}"] if contents.note else []
    names = _class_names(contents.classes, state, notes)
    sha256, size = file_sha256(contents.files[0]), contents.image_size
    found = warnings_of(scan_checkpoint(contents.path)) if contents.foreign else ()
    warnings = tuple(replace(one, message=f"'{contents.path}': {one.message}") for one in found)
    return Checkpoint(contents.path, state, contents.metadata, sha256, tuple(notes), warnings, names, size)


def _class_names(
    found: tuple[str, tuple[str, ...]] | None, state: dict[str, Tensor], notes: list[str]
) -> tuple[str, ...] | None:
    """Return the names of the classes of these weights and add a note; None if they are of other ones."""
    where, names = found or ("", ())
    if not any(tensor.ndim and len(tensor) == len(names) for tensor in state.values() if names):
        return None
    notes.append(f"checkpoint: the names of the {len(names)} classes were read from '{where}'")
    return names


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, AttributeError) as error:
        head = read_head(path)
        kind = f"{error}".partition("\n")[0] if is_safetensors(head) else guess(head)
        message = f"checkpoint '{path}' is not a valid safetensors file: {kind}"
        raise CannotRunError(message, remedy(path, head)) from error
