"""Write the tensors of any checkpoint as a safetensors file, one in memory at a time.

The format: https://huggingface.co/docs/safetensors/index#format
"""

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch

from modelscope_cli.checkpoints.entries import BITS, Contents, TensorEntry
from modelscope_cli.checkpoints.safetensors_header import safetensors_form
from modelscope_cli.checkpoints.tensors import each_with_file, read_values
from modelscope_cli.errors import CannotRunError
from modelscope_cli.plain_text import plain

Track = Callable[[Iterable[TensorEntry]], Iterable[TensorEntry]]


def check_convertible(contents: Contents, tensors: Sequence[TensorEntry], *, is_whole: bool) -> None:
    """Refuse what safetensors cannot hold, before anything is written.

    Args:
        is_whole: all tensors are converted, so none may be left out.
    """
    path, typed = contents.path, shlex.quote(str(contents.path))
    for tensor in tensors:
        has_values = tensor.storage is not None or tensor.chunks
        if tensor.special or not has_values or safetensors_form(tensor) is None:
            what = tensor.special or (tensor.dtype if has_values else "without values")
            raise CannotRunError(
                f"'{path}' cannot be converted: '{plain(tensor.name)}' is {what}",
                f"modelscope weights {typed}",
            )
    if is_whole and contents.inside:
        message = f"'{path}' cannot be converted whole: '{contents.inside[0]}' holds unnamed tensors"
        raise CannotRunError(message, "--layer '*'")


def write_safetensors(
    path: Path, tensors: Sequence[TensorEntry], metadata: dict[str, str], track: Track
) -> None:
    """Write tensors, contiguous; shared storage is written for each name."""
    # The widest first, so that each begins at a multiple of its own width.
    tensors = sorted(tensors, key=lambda tensor: (-BITS[tensor.dtype], tensor.name))
    header = _header(tensors, metadata)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor, source in each_with_file(track(tensors)):
            values = read_values(tensor, source).contiguous()
            flat = values.as_strided((values.numel(),), (1,))  # the stride of a single element may be any
            file.write(flat.view(torch.uint8).numpy().data)


def _header(tensors: Sequence[TensorEntry], metadata: dict[str, str]) -> bytes:
    document: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    at = 0
    for tensor in tensors:
        form = safetensors_form(tensor)
        assert form is not None  # refused by `check_convertible`
        document[tensor.name] = {
            "dtype": form[0],
            "shape": form[1],
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(document, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)
