"""Read a checkpoint file: never running code from it, and saying in one line what is wrong with it."""

import hashlib
import pickle
import re
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Parameter

from modelscope_cli.checkpoints.entries import Contents
from modelscope_cli.checkpoints.file_type import damaged, guess, is_safetensors, read_head, remedy
from modelscope_cli.checkpoints.reading import checkpoint_in, is_several, read_contents
from modelscope_cli.errors import CannotRunError
from modelscope_cli.models.refusal import refused
from modelscope_cli.models.tensor_values import each_with_file, read_values
from modelscope_cli.models.unwrap import unwrap_state
from modelscope_cli.plain_text import plain
from modelscope_cli.records.naming import with_article
from modelscope_cli.records.run import Notice

_N_NAMED = 8


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Named tensors on the CPU, mapped from the file where its format allows.

    Attributes:
        path: the file.
        state: the tensors by name, taken out of whatever they were nested in.
        metadata: of a safetensors file; else empty.
        sha256: of the whole file; of the index where there are several.
        notes: one line on what was taken out of what, where it was nested.
        warnings: what loading the file in full would run, where it was read without.
    """

    path: Path
    state: dict[str, Tensor]
    metadata: dict[str, str]
    sha256: str
    notes: tuple[str, ...]
    warnings: tuple[Notice, ...] = ()


def read_checkpoint(path: Path, key: str | None = None, contents: Contents | None = None) -> Checkpoint:
    """Read the named tensors of a safetensors or torch file; its content, not its suffix, says which.

    So, too, of shards with an index and of folders. What torch does not load as weights only is read from its
    bytes, and nothing of it is run.

    Args:
        key: what to take out of it; None for the state dict, where it usually stands.
        contents: what its headers say of that, where they have been read.

    Raises:
        UsageError: nothing goes by this key (exit 2).
        CannotRunError: not there, not a checkpoint, damaged, or its values take running code (exit 4).
    """
    if path.is_dir() and not is_several(path):
        file = checkpoint_in(path)
        checkpoint = read_checkpoint(file, key)
        return replace(checkpoint, notes=(f"checkpoint: read '{file.name}' of the folder", *checkpoint.notes))
    if is_several(path):
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
    # Classes that this process happens to have imported are loaded, too: a DTensor is not what it holds.
    if any(type(tensor) not in (Tensor, Parameter) for tensor in state.values()):
        return _from_contents(contents or read_contents(path, key))
    if not state:
        message = f"checkpoint '{path}' holds no named tensors, but {_describe(content)}"
        raise CannotRunError(message, "torch.save(model.state_dict(), 'model.pt')   makes one that does")
    return Checkpoint(path, state, metadata, file_sha256(path), (f"checkpoint: {note}",) if note else ())


def read_torch_file(path: Path) -> Any:
    """Return what `torch.save` put into a file: tensors and plain containers only, on the CPU.

    Raises:
        CannotRunError: not there, not such a file, damaged, or a pickle that would run code (exit 4).
    """
    head = read_head(path)
    _check_head(path, head)
    try:
        return _load_weights_only(path, head)
    except pickle.UnpicklingError as error:
        raise refused(path, str(error)) from error
    except Exception as error:  # a damaged pickle can raise anything; no code of the file has run
        if "TorchScript" in str(error):
            raise refused(path, str(error)) from error
        reason = re.split(r"\.\s|\n", str(error).strip())[0] or type(error).__name__
        raise damaged(path, reason) from error


def _check_head(path: Path, head: bytes) -> None:
    if not head.startswith((b"PK\x03\x04", b"\x80")):
        raise CannotRunError(f"'{path}' is not a checkpoint: {guess(head, path=path)}", remedy(path, head))


def _load_weights_only(path: Path, head: bytes) -> Any:
    is_zip = head.startswith(b"PK")  # the older format cannot be mapped
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)


def _read_inertly(path: Path, key: str | None, contents: Contents | None, reason: Exception) -> Checkpoint:
    """Read what torch, for `reason`, did not load as weights only."""
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
    """Read all the values of a checkpoint that is described.

    Raises:
        CannotRunError: a tensor whose bytes alone do not tell its values, or files that are not what their
            headers said (exit 4).
    """
    state = {}
    hint = f"modelscope weights {shlex.quote(str(contents.path))}"
    for tensor, file in each_with_file(contents.tensors):
        try:
            state[tensor.name] = read_values(tensor, file)
        except TypeError as error:
            message = f"checkpoint '{contents.path}' is not loaded: '{tensor.name}' is {error}"
            raise CannotRunError(message, hint) from error
    if not state:
        message = f"checkpoint '{contents.path}' holds no named tensors"
        raise CannotRunError(message, "torch.save(model.state_dict(), 'model.pt')   makes one that does")
    notes = (f"checkpoint: {contents.note}",) if contents.note else ()
    return Checkpoint(
        contents.path,
        state,
        contents.metadata,
        file_sha256(contents.files[0]),
        notes,
        tuple(foreign_notices(contents)),
    )


def foreign_notices(contents: Contents) -> Iterator[Notice]:
    """Yield a warning that names what loading a checkpoint in full would run; nothing of it has been run."""
    names = [plain(name) for name in contents.foreign]
    if names:
        more = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
        run = ", ".join(names[:_N_NAMED])
        yield Notice("foreign_code", f"a full load of '{contents.path}' would run: {run}{more}")


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
        message = f"checkpoint '{path}' is not a whole safetensors file: {kind}"
        raise CannotRunError(message, remedy(path, head)) from error


def _describe(content: Any) -> str:
    if not isinstance(content, dict):
        return with_article(type(content).__name__)
    return "the keys " + ", ".join(repr(key) for key in list(content)[:5]) if content else "nothing"
