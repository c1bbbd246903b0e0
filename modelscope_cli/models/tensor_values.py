"""Read the values of one tensor of a checkpoint, straight from its bytes: no pickle of the file is loaded."""

import io
import math
import pickle

import torch
from torch import Tensor

from modelscope_cli.checkpoints.entries import BITS, Chunk, Storage, TensorEntry
from modelscope_cli.checkpoints.sniff import damaged
from modelscope_cli.checkpoints.zip_directory import data_start


def read_values(entry: TensorEntry) -> Tensor:
    """Return a tensor on the CPU, of the entry's shape, dtype and stride; nothing else stays in memory.

    Raises:
        TypeError: it has no values, or quantized ones.
        CannotRunError: the file is not what its headers said (exit 4).
    """
    if entry.is_quantized:
        raise TypeError("quantized: only loading it in full can tell its scale")
    dtype = getattr(torch, entry.dtype)
    if entry.chunks:
        whole = torch.empty(entry.shape, dtype=dtype)
        for chunk in entry.chunks:
            here = tuple(slice(at, at + n) for at, n in zip(chunk.start, chunk.shape, strict=True))
            whole[here] = _read_chunk(chunk)
        return whole
    if entry.storage is None:
        raise TypeError("a tensor on meta has no values")
    if entry.numel == 0:
        return torch.empty(entry.shape, dtype=dtype)
    stride = _contiguous(entry.shape) if entry.stride is None else entry.stride
    last = sum((n - 1) * step for n, step in zip(entry.shape, stride, strict=True))
    n_element = BITS[entry.dtype] // 8
    data = _read(entry.storage, entry.offset * n_element, (last + 1) * n_element)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).as_strided(entry.shape, stride)


def _read(storage: Storage, offset: int, n: int) -> bytearray:
    data = bytearray(n)
    try:
        with storage.file.open("rb") as file:
            start = data_start(file, storage.position) if storage.is_zipped else storage.position
            file.seek(start + offset)
            if file.readinto(data) < n:
                raise ValueError(f"it ends within '{storage.key}'")
    except (OSError, ValueError) as error:
        raise damaged(storage.file, error) from error
    return data


def _read_chunk(chunk: Chunk) -> Tensor:
    saved = io.BytesIO(_read(chunk.storage, 0, chunk.storage.nbytes))
    try:
        tensor = torch.load(saved, map_location="cpu", weights_only=True)
        return tensor.reshape(chunk.shape)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, AttributeError) as error:
        raise damaged(chunk.storage.file, str(error).partition("\n")[0]) from error


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
