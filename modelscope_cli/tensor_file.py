"""Write captured tensors as a safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from modelscope_cli.output_files import write_bytes


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **about: Any) -> int:
    """Write named tensors atomically and return the size of the file in bytes.

    Args:
        about: metadata for the header, each as a JSON document.
    """
    data: dict[str, Tensor] = {}
    memories: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().to("cpu").contiguous()
        memory = copy.untyped_storage().data_ptr()
        data[name] = copy.clone() if memory in memories else copy  # the format refuses shared memory
        memories.add(memory)
    # Not `save_file`, whose errors are not OSError and whose files only the owner can read.
    content = save(
        data, metadata={"format": "pt", **{key: json.dumps(value) for key, value in about.items()}}
    )
    write_bytes(path, content)
    return len(content)
