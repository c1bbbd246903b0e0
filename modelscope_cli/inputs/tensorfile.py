"""Inputs stored as tensors: .pt, .npy, .safetensors. Nothing in such a file is ever executed."""

import os
import pickle
import shlex
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.grammar import by
from modelscope_cli.paths import refuse_endless
from modelscope_cli.records.naming import with_article

TENSOR_SUFFIXES = (".pt", ".npy", ".safetensors")


def read_tensors(typed: str) -> list[Tensor]:
    """Return the tensors of a file, on the CPU, one an input; safetensors in the order of their names.

    Raises:
        CannotRunError: exit code 4; not such a file, damaged, or holding something else.
    """
    path = Path(typed)
    refuse_endless(path)
    if not os.path.isfile(typed):
        what = "is a folder, not a file" if os.path.isdir(typed) else "does not exist"
        raise CannotRunError(f"'{typed}' {what}", f"ls -l {shlex.quote(str(path.parent))}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of archives it is about to refuse
            tensors = _READERS[path.suffix.lower()](path)
    except pickle.UnpicklingError as error:
        raise CannotRunError(
            f"'{typed}' holds more than tensors and might run code, so it was not loaded",
            "python -c \"import torch; torch.save(torch.rand(1, 3, 224, 224), 'input.pt')\"",
        ) from error
    # A damaged archive, array or header trips each reader in its own way, IndexError included.
    except Exception as error:
        raise CannotRunError(
            f"'{typed}' cannot be read as {path.suffix.lower()}: {_first_line(error)}",
            f"ls -l {shlex.quote(typed)}",
        ) from error
    for tensor in tensors:
        if not tensor.numel() or not tensor.ndim:
            raise CannotRunError(
                f"'{typed}' holds a tensor of shape ({by(tensor.shape)}), which is not an input",
                "--input-shape 1,3,224,224",
            )
    return tensors


def _read_pt(path: Path) -> list[Tensor]:
    loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    tensors = list(loaded) if isinstance(loaded, list | tuple) else [loaded]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError(f"it holds {with_article(type(loaded).__name__)}, not a tensor or a list of tensors")
    return [tensor.detach() for tensor in tensors]


def _read_npy(path: Path) -> list[Tensor]:
    import numpy as np

    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise TypeError("it is an archive of arrays, not one array")
    return [torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))]


def _read_safetensors(path: Path) -> list[Tensor]:
    named = load_file(path)
    if not named:
        raise ValueError("it holds no tensor")
    return [named[name] for name in sorted(named)]


_READERS = {".pt": _read_pt, ".npy": _read_npy, ".safetensors": _read_safetensors}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
