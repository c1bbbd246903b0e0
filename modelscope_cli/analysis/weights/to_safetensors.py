"""Write the tensors of any checkpoint as a safetensors file, one in memory at a time.

The format: https://huggingface.co/docs/safetensors/index#format
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from modelscope_cli.checkpoints.entries import BITS, TensorEntry
from modelscope_cli.checkpoints.safetensors_header import SAFETENSORS_NAMES
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.tensor_values import read_values

Track = Callable[[Iterable[TensorEntry]], Iterable[TensorEntry]]


def check_convertible(path: Path, tensors: Sequence[TensorEntry]) -> None:
    """Refuse what safetensors cannot hold, before anything is written.

    Raises:
        CannotRunError: it names the first such tensor (exit 4).
    """
    for tensor in tensors:
        has_values = tensor.storage is not None or tensor.chunks
        if tensor.dtype not in SAFETENSORS_NAMES or tensor.is_quantized or not has_values:
            what = "quantized" if tensor.is_quantized else tensor.dtype if has_values else "without values"
            message = f"'{path}' cannot be converted: '{tensor.name}' is {what}"
            raise CannotRunError(message, f"modelscope weights {path}")


def write_safetensors(
    path: Path, tensors: Sequence[TensorEntry], metadata: dict[str, str], track: Track
) -> None:
    """Write tensors, contiguous; what shares its storage is written for each name.

    Raises:
        OSError: the disk is full, or the like.
        CannotRunError: the file is not what its headers said (exit 4).
    """
    # The widest first, so that each begins at a multiple of its own width.
    tensors = sorted(tensors, key=lambda tensor: (-BITS[tensor.dtype], tensor.name))
    header = _header(tensors, metadata)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in track(tensors):
            values = read_values(tensor).contiguous()
            file.write(values.reshape(-1).view(torch.uint8).numpy().data)


def _header(tensors: Sequence[TensorEntry], metadata: dict[str, str]) -> bytes:
    document: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for tensor in tensors:
        document[tensor.name] = {
            "dtype": SAFETENSORS_NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(document, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
