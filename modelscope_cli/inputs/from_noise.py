"""Batches of seeded noise, of the shapes typed or of the model's natural ones."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from modelscope_cli.errors import UsageError
from modelscope_cli.inputs.batch import Batch, Inputs, ModelSide, count_images, shapes_of
from modelscope_cli.inputs.default_shape import natural_shapes
from modelscope_cli.inputs.grammar import ShapeSpec, by, parse_shape, parse_size
from modelscope_cli.inputs.noise import count_codes, count_values, make_noise
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.records.run import InputInfo, Shape


def open_noise(
    request: InputRequest, target: ModelSide, transforms: Any | None, module: nn.Module | None
) -> Inputs:
    """Open `request.repeat` batches of noise; drawn anew, and the same, each time they are gone through.

    Raises:
        UsageError: exit code 2; a shape or size that cannot be read or does not fit.
    """
    if request.shapes:
        specs = _typed_specs(request)
    else:
        shapes = natural_shapes(target.family, transforms, module, request.batch or 1)
        specs = [ShapeSpec(shape) for shape in _resized(shapes, request.size)]
    n_codes = count_codes(module)
    is_picture = target.family == "detection"

    def arguments(device: torch.device, seed: int) -> tuple[Any, ...]:
        noise = make_noise(specs, seed, target.dtype, device, n_codes, is_picture)
        return target.arrange(noise)

    outline = arguments(torch.device("meta"), request.seed)
    n_images = count_images(outline)
    seeds = [(request.seed + i) % 2**64 for i in range(request.repeat)]

    def batches() -> Iterator[Batch]:
        for seed in seeds:
            yield Batch(arguments(target.device, seed), n_images)

    several = f" to {seeds[-1]}" if len(seeds) > 1 else ""
    note = f"input: {describe(specs, n_codes, is_picture)} (seed {request.seed}{several})"
    info = InputInfo("noise", shapes_of(outline))
    return Inputs(info, n_images * len(seeds), len(seeds), batches, (note,))


def _typed_specs(request: InputRequest) -> list[ShapeSpec]:
    specs = [parse_shape(text) for text in request.shapes]
    typed, first = request.shapes[0], specs[0]
    if request.batch not in {None, first.shape[0]}:
        prefix = f"{first.dtype}:" if first.dtype else ""
        raise UsageError(
            f"'--batch {request.batch}' and '--input-shape {typed}' ask for different batches",
            f"--input-shape {prefix}{','.join(map(str, (request.batch, *first.shape[1:])))}",
        )
    return specs


def _resized(shapes: Sequence[Shape], typed: str | None) -> Sequence[Shape]:
    if typed is None:
        return shapes
    size = parse_size(typed)
    if len(shapes[0]) < 3:
        raise UsageError(
            f"'--size {typed}' does not fit an input of {by(shapes[0])}, which is not an image",
            f"leave out --size {typed}",
        )
    return [(*shape[:-2], size[0], size[-1]) for shape in shapes]


def describe(specs: Sequence[ShapeSpec], n_codes: int, is_picture: bool) -> str:
    """Say what noise of these shapes holds."""
    floats = "uniform noise in 0..1" if is_picture else "normal noise"
    return "; ".join(
        f"integers in 0..{count_values(spec, n_codes) - 1}, {by(spec.shape)} ({spec.dtype})"
        if spec.is_integer
        else f"{floats}, {by(spec.shape)}"
        for spec in specs
    )
