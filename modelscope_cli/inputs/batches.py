"""Open whatever a person asked for as batches that a model of the given family accepts."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide
from modelscope_cli.inputs.default_shape import natural_named
from modelscope_cli.inputs.from_names import open_named
from modelscope_cli.inputs.from_noise import open_noise
from modelscope_cli.inputs.from_pictures import open_pictures
from modelscope_cli.inputs.from_tensors import open_tensors
from modelscope_cli.inputs.request import InputRequest, refuse
from modelscope_cli.inputs.tensorfile import TENSOR_SUFFIXES

__all__ = ["Batch", "Inputs", "open_inputs"]


def open_inputs(
    request: InputRequest,
    *,
    family: str,
    transforms: Any | None,
    module: nn.Module | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Inputs:
    """Find the pictures, the tensor file or the shapes that were asked for; else noise of the natural size.

    Raises:
        UsageError: exit code 2; options that cannot be read or contradict each other.
        CannotRunError: exit code 4; a file that cannot be used. A later picture raises while iterating.
    """
    target = ModelSide(family, device, dtype)
    if request.batch is not None and request.batch < 1:
        raise UsageError(f"'--batch {request.batch}' is not a whole number above 0", "--batch 8")
    if request.files and request.shapes:
        raise UsageError(
            f"'{request.files[0]}' and '--input-shape {request.shapes[0]}' are two different inputs",
            f"leave out --input-shape {request.shapes[0]}",
        )
    if any(Path(file).suffix.lower() in TENSOR_SUFFIXES for file in request.files):
        refuse(request.size_options() + request.value_options(), "a tensor file")
        return repeated(open_tensors(request, target), request.repeat)
    if request.files:
        return repeated(open_pictures(request, target, transforms, module), request.repeat)
    if request.shapes:
        refuse(request.size_options(), "'--input-shape'")
    refuse(request.value_options(), "noise")
    named = None if request.shapes else natural_named(module, request.batch or 1)
    if named is not None:
        return open_named(named, request, target, transforms, module)
    return open_noise(request, target, transforms, module)


def repeated(inputs: Inputs, times: int) -> Inputs:
    """Return inputs that are gone through several times."""
    if times == 1:
        return inputs

    def batches() -> Iterator[Batch]:
        for _ in range(times):
            yield from inputs

    return replace(
        inputs,
        n_listed=inputs.n_listed * times,
        n_batches=inputs.n_batches * times,
        make_batches=batches,
        make_blocks=None,
        times=times,
    )
