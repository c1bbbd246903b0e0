"""Batches from one file of tensors."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, count_images, shapes_of
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.inputs.tensorfile import read_tensors
from modelscope_cli.records.run import InputInfo


def open_tensors(request: InputRequest, target: ModelSide) -> Inputs:
    """Open a tensor file: one forward, or with `--batch` as many as its first dimension needs.

    Raises:
        UsageError, CannotRunError: exit codes 2 and 4; see the parts.
    """
    if len(request.files) > 1:
        raise UsageError(
            f"a tensor file stands alone, but {len(request.files)} files were given: "
            + ", ".join(f"'{file}'" for file in request.files[:4]),
            "store several inputs as the tensors of one .safetensors file",
        )
    (file,) = request.files
    return open_batch(read_tensors(file), request.batch, target, f"'{file}'", (file,))


def open_batch(
    tensors: list[Tensor], batch: int | None, target: ModelSide, name: str, files: tuple[str, ...] = ()
) -> Inputs:
    """Open the arguments of one forward, or with `batch` of as many as their first dimension needs.

    Args:
        name: what to call them in messages.

    Raises:
        UsageError: they cannot be cut so (exit 2).
    """
    chunks = _split(tensors, batch, target, name)
    counts = [count_images(target.arrange(chunk)) for chunk in chunks]

    def batches() -> Iterator[Batch]:
        for chunk, count in zip(chunks, counts, strict=True):
            # A model may write into its input; the next time round it must be the same.
            args = target.arrange([tensor.clone() for tensor in chunk])
            yield Batch(target.place(args), count)

    others = {tensor.dtype for tensor in tensors if tensor.is_floating_point()} - {target.dtype}
    notes = tuple(f"{name}: {dtype} read as {target.dtype}" for dtype in sorted(others, key=str))
    info = InputInfo("tensor", shapes_of(target.arrange(chunks[0])), files, n_files=len(files))
    return Inputs(info, sum(counts), len(chunks), batches, notes)


def is_array(value: Any) -> bool:
    """Tell a tensor or an array of NumPy, which need not be imported."""
    return isinstance(value, Tensor) or type(value).__module__ == "numpy"


def _split(tensors: list[Tensor], batch: int | None, target: ModelSide, name: str) -> list[Sequence[Tensor]]:
    """Cut along the first dimension, or between images for detection; whole where no batch was asked for."""
    if batch is None:
        return [tensors]
    if target.family == "detection":
        (images,) = target.arrange(tensors)
        return [images[start : start + batch] for start in range(0, len(images), batch)]
    if len({len(tensor) for tensor in tensors}) > 1:
        firsts = ", ".join(str(len(tensor)) for tensor in tensors)
        raise UsageError(
            f"'--batch {batch}' cannot cut {name}: its first dimensions are {firsts}", "leave out --batch"
        )
    return list(zip(*(torch.split(tensor, batch) for tensor in tensors), strict=True))
