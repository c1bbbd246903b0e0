"""Read the values of one tensor of a checkpoint, straight from its bytes: no pickle of the file is loaded."""

import io
import math
from typing import IO

import torch
from torch import Tensor

from modelscope_cli.checkpoints.entries import BITS, Chunk, TensorEntry
from modelscope_cli.checkpoints.file_type import damaged
from modelscope_cli.checkpoints.torch_file import read_saved_tensor
from modelscope_cli.checkpoints.zip_directory import data_start


def read_values(entry: TensorEntry) -> Tensor:
    """Return a tensor on the CPU, of the entry's shape, dtype and stride; nothing else stays in memory.

    Raises:
        TypeError: it has no values, or quantized ones.
        CannotRunError: the file is not what its headers said (exit 4).
    """
    if entry.is_quantized:
        raise TypeError("quantized: only loading it in full can tell its scale")
    if entry.chunks:
        whole = torch.zeros(entry.shape, dtype=getattr(torch, entry.dtype))
        for chunk in entry.chunks:
            here = tuple(slice(at, at + n) for at, n in zip(chunk.start, chunk.shape, strict=True))
            whole[here] = _read_chunk(chunk)
        return whole
    if entry.storage is None:
        raise TypeError("a tensor on meta has no values")
    try:
        with entry.storage.file.open("rb") as file:
            return _read(file, entry)
    except (OSError, ValueError) as error:
        raise damaged(entry.storage.file, error) from error


def _read(file: IO[bytes], entry: TensorEntry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    storage = entry.storage
    if storage is None or entry.numel == 0:
        return torch.empty(entry.shape, dtype=dtype)
    stride = _contiguous(entry.shape) if entry.stride is None else entry.stride
    last = sum((n - 1) * step for n, step in zip(entry.shape, stride, strict=True))
    n_element = BITS[entry.dtype] // 8
    data = bytearray((last + 1) * n_element)
    start = data_start(file, storage.position) if storage.is_zipped else storage.position
    file.seek(start + entry.offset * n_element)
    if file.readinto(data) < len(data):  # type: ignore[attr-defined]
        raise ValueError(f"it ends within '{storage.key}'")
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).as_strided(entry.shape, stride)


def _read_chunk(chunk: Chunk) -> Tensor:
    try:
        with chunk.storage.file.open("rb") as file:
            file.seek(chunk.storage.position)
            saved = io.BytesIO(file.read(chunk.storage.nbytes))
        entry = read_saved_tensor(chunk.storage.file, saved)
        if entry.shape != chunk.shape:
            raise ValueError(f"a chunk of another shape in '{chunk.storage.key}'")
        return _read(saved, entry)
    except (OSError, ValueError) as error:
        raise damaged(chunk.storage.file, error) from error


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))
