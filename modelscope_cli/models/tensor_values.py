"""Read the values of the tensors of a checkpoint, straight from their bytes: no pickle of the file is loaded."""

import io
import math
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from modelscope_cli.checkpoints.entries import BITS, Chunk, Storage, TensorEntry
from modelscope_cli.checkpoints.file_type import damaged
from modelscope_cli.checkpoints.torch_file import read_saved_tensor
from modelscope_cli.checkpoints.zip_directory import data_start

_N_PIECE = 1 << 20


def read_values(entry: TensorEntry, open_file: IO[bytes] | None = None) -> Tensor:
    """Return a tensor on the CPU, of the entry's shape, dtype and stride; nothing else stays in memory.

    Args:
        open_file: the file of its storage, where it is open already.

    Raises:
        TypeError: it has no values, or none that its bytes alone tell.
        CannotRunError: the file is not what its headers said (exit 4).
    """
    if entry.special is not None:
        raise TypeError(f"{entry.special}: its values are not read")
    if entry.chunks:
        whole = torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype))
        for chunk in entry.chunks:
            here = tuple(slice(at, at + n) for at, n in zip(chunk.start, chunk.shape, strict=True))
            whole[here] = _read_chunk(chunk)
        return whole
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
    """Yield each entry with its file open, which stays so for the entries that follow in the same file."""
    current: Path | None = None
    file: IO[bytes] | None = None
    with ExitStack() as stack:
        for entry in entries:
            path = entry.storage.file if entry.storage else None
            if path is not None and path != current:
                stack.close()
                try:
                    file = stack.enter_context(path.open("rb"))
                except OSError as error:
                    raise damaged(path, error) from error
                current = path
            yield entry, file if path is not None else None


def _read(file: IO[bytes], entry: TensorEntry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    storage = entry.storage
    if storage is None or entry.numel == 0:
        return torch.empty(entry.shape, dtype=dtype)
    stride = _contiguous(entry.shape) if entry.stride is None else entry.stride
    last = sum((n - 1) * step for n, step in zip(entry.shape, stride, strict=True))
    n_element = BITS[entry.dtype] // 8
    data = _bytes(file, storage, entry.offset * n_element, (last + 1) * n_element)
    values = torch.frombuffer(data, dtype=torch.uint8).view(dtype).as_strided(entry.shape, stride)
    values = values.conj().resolve_conj() if entry.is_conj else values
    return values.neg() if entry.is_neg else values


def _bytes(file: IO[bytes], storage: Storage, begin: int, nbytes: int) -> bytearray:
    """Return a part of a storage.

    Raises:
        ValueError: the file ends before it.
    """
    if storage.data is not None:
        text = storage.data[begin : begin + nbytes]
        data = bytearray(text.encode("latin-1") if isinstance(text, str) else text)
    elif storage.packed is not None:
        file.seek(storage.position)
        data = _inflate(file, storage.packed, storage.skip + begin, nbytes)
    else:
        start = data_start(file, storage.position) if storage.is_zipped else storage.position
        file.seek(start + begin)
        data = bytearray(nbytes)
        del data[file.readinto(data) :]  # type: ignore[attr-defined]
    if len(data) < nbytes:
        raise ValueError(f"it ends within '{storage.key}'")
    return data


def _inflate(file: IO[bytes], n_packed: int, skip: int, nbytes: int) -> bytearray:
    """Unpack no more than is wanted, piece by piece."""
    unpacking, data = zlib.decompressobj(-zlib.MAX_WBITS), bytearray()
    try:
        while len(data) < nbytes and (n_packed > 0 or unpacking.unconsumed_tail):
            packed = unpacking.unconsumed_tail or file.read(min(_N_PIECE, n_packed))
            n_packed -= 0 if unpacking.unconsumed_tail else len(packed)
            piece = unpacking.decompress(packed, _N_PIECE)
            if not packed or (not piece and unpacking.eof):
                break
            data += piece[skip:] if skip else piece
            skip = max(0, skip - len(piece))
    except zlib.error as error:
        raise ValueError("bytes that cannot be unpacked") from error
    return data[:nbytes]


def _read_chunk(chunk: Chunk) -> Tensor:
    try:
        with chunk.storage.file.open("rb") as file:
            file.seek(chunk.storage.position)
            saved = io.BytesIO(file.read(chunk.storage.nbytes))
        entry = read_saved_tensor(chunk.storage.file, saved)
        if entry.shape != chunk.shape:
            raise ValueError(f"a chunk of another shape in '{chunk.storage.key}'")
        if entry.special is not None:
            raise TypeError(f"{entry.special}: its values are not read")
        return _read(saved, entry)
    except (OSError, ValueError) as error:
        raise damaged(chunk.storage.file, error) from error


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
