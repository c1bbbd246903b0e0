"""Read inputs stored as tensors (.pt, .npy, .npz, .safetensors); nothing in such a file is executed."""

import os
import pickle
import shlex
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.other_shapes import readings_taken
from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, count_images, shapes_of
from modelscope_cli.inputs.grammar import by
from modelscope_cli.inputs.model_config import natural_shapes, takes_shape
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.paths import look_for, refuse_endless
from modelscope_cli.records.naming import with_article
from modelscope_cli.records.run import InputInfo

TENSOR_SUFFIXES = (".pt", ".npy", ".npz", ".safetensors")


def suffix_of(name: str) -> str:
    return Path(name).suffix.lower()


def read_tensors(typed: str) -> list[Tensor] | dict[str, Tensor]:
    """Return the tensors of a file on the CPU, one per input, or as the dict of a .pt file; safetensors by name."""
    path = Path(typed)
    refuse_endless(path)
    if not os.path.isfile(typed):
        problem = "is a folder, not a file" if os.path.isdir(typed) else "does not exist"
        raise CannotRunError(f"'{typed}' {problem}", look_for(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about archives before refusing them
            tensors = _READERS[suffix_of(typed)](path)
    except pickle.UnpicklingError as error:
        raise CannotRunError(
            f"'{typed}' contains more than tensors and might run code, so it was not loaded",
            "python -c \"import torch; torch.save(torch.rand(1, 3, 224, 224), 'input.pt')\"",
        ) from error
    # Readers raise anything, IndexError included, for a damaged archive, array or header.
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        message = f"'{typed}' cannot be read as {path.suffix.lower()}: {reason}"
        raise CannotRunError(message, f"ls -l {shlex.quote(typed)}") from error
    if isinstance(tensors, dict) and any("." in name for name in tensors):
        raise CannotRunError(f"'{typed}' holds weights, not an input", f"--checkpoint {shlex.quote(typed)}")
    for tensor in tensors.values() if isinstance(tensors, dict) else tensors:
        if not tensor.numel() or not tensor.ndim:
            message = f"'{typed}' holds a tensor of shape ({by(tensor.shape)}), which is not an input"
            raise CannotRunError(message, "--input-shape 1,3,224,224")
    return tensors


def _read_pt(path: Path) -> list[Tensor] | dict[str, Tensor]:
    loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    names = [*loaded] if isinstance(loaded, dict) else []
    tensors = [*loaded.values()] if names else [*loaded] if isinstance(loaded, list | tuple) else [loaded]
    if not tensors or not all(isinstance(tensor, Tensor) for tensor in tensors):
        raise TypeError(f"it holds {with_article(type(loaded).__name__)}, not just one or more tensors")
    tensors = [tensor.detach() for tensor in tensors]
    return dict(zip(map(str, names), tensors, strict=True)) if names else tensors


def _read_npy(path: Path) -> list[Tensor]:
    import numpy as np

    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise TypeError("it is an archive of arrays, not one array")
    return [torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))]


def _read_npz(path: Path) -> list[Tensor]:
    import numpy as np

    with np.load(path, allow_pickle=False) as arrays:
        return [torch.from_numpy(arrays[name]) for name in arrays.files]


def _read_safetensors(path: Path) -> list[Tensor]:
    named = load_file(path)
    if not named:
        raise ValueError("it holds no tensor")
    return [named[name] for name in sorted(named)]


_READERS = {".pt": _read_pt, ".npy": _read_npy, ".npz": _read_npz, ".safetensors": _read_safetensors}


def open_tensors(
    tensors: list[Tensor], request: InputRequest, target: ModelSide, module: nn.Module | None
) -> Inputs:
    """Open those of a tensor file: one forward, or with `--batch` several along their first dimension.

    For a model that begins with a 3-d convolution `(C, D, H, W)`, or `(D, H, W)` of one channel, is one volume.
    """
    if len(request.files) > 1:
        raise UsageError(
            f"a tensor file must be the only input, but {len(request.files)} files were given: "
            + ", ".join(f"'{file}'" for file in request.files[:4]),
            "store several inputs as the tensors of one .safetensors file",
        )
    (file,) = request.files
    taken = as_batch(tensors, target, module, file)
    return open_batch(taken, request.batch, target, f"'{file}'", (file,), tensors)


# What an input may have been meant as: the first add dimensions of one, the others change an order or values.
_ADDED = {
    "[None]": lambda x: x[None],
    "[:, None]": lambda x: x[:, None],
    "[None, None]": lambda x: x[None, None],
}
_CHANGED = {
    ".movedim(-1, 1)": lambda x: x.movedim(-1, 1),
    ".movedim(-1, 0)": lambda x: x.movedim(-1, 0),
    ".movedim(-1, 0)[None]": lambda x: x.movedim(-1, 0)[None],
    ".movedim(2, 1)": lambda x: x.movedim(2, 1),
    ".movedim(1, 0)[None]": lambda x: x.movedim(1, 0)[None],
    ".flatten(1)": lambda x: x.flatten(1),
    ".flatten()[None]": lambda x: x.flatten()[None],
    ".long()": lambda x: x.long(),
    "[:, :3]": lambda x: x.unflatten(1, (2, 2)).flatten(1, 2)[:, :3],  # of red, green, blue and alpha alone
    "[None, :3]": lambda x: x.unflatten(0, (2, 2)).flatten(0, 1)[None, :3],
    ".expand(-1, 3, -1, -1)": lambda x: x.expand(-1, 3, -1, -1),
    ".expand(1, 3, -1, -1)": lambda x: x.expand(1, 3, -1, -1),
    ".mean(1, keepdim=True)": lambda x: x.unflatten(1, (3, 1)).mean(1),
}


def as_batch(
    tensors: list[Tensor], target: ModelSide, module: nn.Module | None, file: str = ""
) -> list[Tensor]:
    """Return the arguments of a forward: a single image `(C, H, W)`, signal or volume as a batch of one, and one
    without channels with one, where the model takes it in no other way.

    Args:
        file: where they are from, for the hint.

    Raises:
        UsageError: channels last, images of bytes, or another order that the model does not take (exit 2).
    """
    first, is_single = tensors[0], len(tensors) == 1 and target.family != "detection"
    if not is_single or module is None:
        return tensors
    is_image = first.ndim == 3 or (first.ndim == 4 and (first.dtype == torch.uint8 or first.shape[-1] <= 4))
    is_of_images = len(natural_shapes(target.family, None, module, 1)[0]) == 4
    images = first if first.ndim == 4 else first[None]
    is_last = is_image and not takes_shape(module, images.shape)
    images = images.movedim(-1, 1) if is_last else images
    if not is_of_images or not is_image or not takes_shape(module, images.shape):
        is_usual = is_of_images and first.ndim == 4 and takes_shape(module, first.shape)
        return tensors if is_usual else [_read_otherwise(first, target, module, file)]
    is_of_bytes = images.dtype == torch.uint8 and not takes_shape(module, images.shape, torch.uint8)
    if is_last or is_of_bytes:
        problems = ["has its channels last"] * is_last + ["is of bytes (uint8)"] * is_of_bytes
        given = f"{by(first.shape)} {' and '.join(problems)}"
        message = f"the input of {given}: the model takes floats, channels first"
        raise UsageError(message, _changing(".movedim(-1, -3)" * is_last + " / 255" * is_of_bytes, file))
    return [images]


def _read_otherwise(given: Tensor, target: ModelSide, module: nn.Module, file: str) -> Tensor:
    """Return an input with the dimensions that it lacks, if there is one way; refuse one that has to be changed."""
    whole = given.to(target.dtype) if given.is_floating_point() else given
    added = readings_taken(module, whole, _ADDED)
    if len(added) == 1:
        return _ADDED[next(iter(added))](given)
    found = added or readings_taken(module, whole, _CHANGED)
    if not found:
        return given
    is_kind = all(one.shape == given.shape for one in found.values())
    takes = "integers" if is_kind else " or ".join(by(one.shape) for one in found.values())
    of = f"the input of {by(given.shape)} does not fit: the model takes {takes}"
    raise UsageError(of, _changing(next(iter(found)), file))


def _changing(change: str, file: str) -> str:
    """Return a hint to change an input as the model takes it."""
    if (read := {".npy": "numpy.load", ".pt": "torch.load"}.get(suffix_of(file))) is None:
        return f"give torch.as_tensor(x){change}"
    changed = f"torch.as_tensor({read}({file!r})){change}"
    return f"python -c \"import numpy, torch; torch.save({changed}, 'changed.pt')\"   and give changed.pt"


def open_batch(
    tensors: list[Tensor],
    batch: int | None,
    target: ModelSide,
    name: str,
    files: tuple[str, ...] = (),
    given: Sequence[Tensor] = (),
) -> Inputs:
    """Open the arguments of one forward, or with `batch` of several along their first dimension.

    Args:
        name: their name in messages.
        given: the same before they got the dimensions that they lacked.
    """
    chunks = _split(tensors, batch, target, name)
    counts = [count_images(target.arrange(chunk)) for chunk in chunks]

    def batches() -> Iterator[Batch]:
        for chunk, count in zip(chunks, counts, strict=True):
            # A model may write into its input, which must be the same in the next pass.
            args = target.arrange([tensor.clone() for tensor in chunk])
            yield Batch(target.place(args), count)

    others = {tensor.dtype for tensor in tensors if tensor.is_floating_point()} - {target.dtype}
    pairs = [(one.shape, made.shape) for one, made in zip(given, tensors, strict=False)]
    notes = (
        *(f"{name}: {dtype} read as {target.dtype}" for dtype in sorted(others, key=str)),
        *(f"{name}: {by(one)} read as {by(made)}" for one, made in pairs if one != made),
    )
    info = InputInfo("tensor", shapes_of(target.arrange(chunks[0])), files, n_files=len(files))
    return Inputs(info, sum(counts), len(chunks), batches, notes)


def is_array(value: Any) -> bool:
    """Tell whether a value is a tensor or a NumPy array, without importing NumPy."""
    return isinstance(value, Tensor) or type(value).__module__ == "numpy"


def _split(tensors: list[Tensor], batch: int | None, target: ModelSide, name: str) -> list[Sequence[Tensor]]:
    """Split along the first dimension, or between images for detection; not at all without `batch`."""
    if batch is None:
        return [tensors]
    if target.family == "detection":
        (images,) = target.arrange(tensors)
        return [images[start : start + batch] for start in range(0, len(images), batch)]
    if len({len(tensor) for tensor in tensors}) > 1:
        firsts = ", ".join(str(len(tensor)) for tensor in tensors)
        message = f"'--batch {batch}' cannot split {name}: its first dimensions are {firsts}"
        raise UsageError(message, "leave out --batch")
    return list(zip(*(torch.split(tensor, batch) for tensor in tensors), strict=True))
