"""Read a checkpoint file: never running code from it, and saying in one line what is wrong with it."""

import hashlib
import pickle
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from modelscope_cli.checkpoints.file_type import guess, read_head, remedy
from modelscope_cli.checkpoints.reading import is_several, read_contents
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.refusal import refused
from modelscope_cli.models.tensor_values import read_values
from modelscope_cli.models.unwrap import unwrap_state


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Named tensors on the CPU, mapped from the file where its format allows.

    Attributes:
        path: the file.
        state: the tensors by name, taken out of whatever they were nested in.
        metadata: of a safetensors file; else empty.
        sha256: of the whole file; of the index where there are several.
        notes: one line on what was taken out of what, where it was nested.
    """

    path: Path
    state: dict[str, Tensor]
    metadata: dict[str, str]
    sha256: str
    notes: tuple[str, ...]


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the named tensors of a safetensors or torch file; its content, not its suffix, says which.

    So, too, of shards with an index and of folders of torch.distributed.checkpoint.

    Raises:
        CannotRunError: not there, not a checkpoint, damaged, or a pickle that would run code (exit 4).
    """
    if is_several(path):
        contents = read_contents(path)
        state = {tensor.name: read_values(tensor) for tensor in contents.tensors}
        return Checkpoint(path, state, contents.metadata, file_sha256(contents.files[0]), ())
    head = read_head(path)
    if head[8:9] == b"{" or path.suffix.lower() == ".safetensors":
        content, metadata = _read_safetensors(path)
    else:
        content, metadata = read_torch_file(path), {}
    state, note = unwrap_state(content)
    if not state:
        message = f"checkpoint '{path}' holds no named tensors, but {_describe(content)}"
        raise CannotRunError(message, "torch.save(model.state_dict(), 'model.pt') makes one that does")
    return Checkpoint(path, state, metadata, file_sha256(path), (f"checkpoint: {note}",) if note else ())


def read_torch_file(path: Path) -> Any:
    """Return what `torch.save` put into a file: tensors and plain containers only, on the CPU.

    Raises:
        CannotRunError: not there, not such a file, damaged, or a pickle that would run code (exit 4).
    """
    head = read_head(path)
    if not head.startswith((b"PK\x03\x04", b"\x80")):
        raise CannotRunError(f"'{path}' is not a checkpoint: {guess(head)}", remedy(path, head))
    is_zip = head.startswith(b"PK")  # the older format cannot be mapped
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)
    except pickle.UnpicklingError as error:
        raise refused(path, str(error)) from error
    except Exception as error:  # a damaged pickle can raise anything; no code of the file has run
        if "TorchScript" in str(error):
            raise refused(path, str(error)) from error
        reason = re.split(r"\.\s|\n", str(error).strip())[0] or type(error).__name__
        message = f"checkpoint '{path}' is damaged or cut short: {reason}"
        raise CannotRunError(
            message, f"get the file again; this one has {path.stat().st_size} bytes"
        ) from error


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
        kind = guess(head) if head[8:9] != b"{" else f"{error}".partition("\n")[0]
        message = f"checkpoint '{path}' is not a whole safetensors file: {kind}"
        raise CannotRunError(message, remedy(path, head)) from error


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return f"a {type(content).__name__}"
    return "the keys " + ", ".join(repr(key) for key in list(content)[:5]) if content else "nothing"
