"""How far the outputs for different images lie apart."""

from dataclasses import replace

import torch
from torch import Tensor

from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.inputs.batch import Batch


class Spread:
    """Holds the output for every image against the one for the first, which is shown first."""

    def __init__(self) -> None:
        self._first: tuple[list[Tensor], Tensor] | None = None

    def of(self, batch: Batch, output: Tensor | None) -> float | None:
        """Return the largest difference of an output in a batch from the first; None where no image differs."""
        given = [tensor for _, tensor in tensors_in(batch.args)]
        has_rows = output is not None and output.ndim > 0 and len(output) == batch.n_images
        if not has_rows or any(tensor.ndim == 0 or len(tensor) != batch.n_images for tensor in given):
            return None
        assert output is not None
        apart: list[float] = []
        for i in range(batch.n_images):
            image, row = [tensor[i] for tensor in given], output[i].detach()
            if self._first is None:
                self._first = [tensor.clone() for tensor in image], row.clone()
            elif _differ(image, self._first[0]) and row.shape == self._first[1].shape and row.numel():
                apart.append(float((row - self._first[1]).abs().max()))
        return max(apart, default=None)


def larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of two differences, where there are two."""
    return max((value for value in (one, other) if value is not None), default=None)


def _differ(image: list[Tensor], other: list[Tensor]) -> bool:
    return any(a.shape == b.shape and not torch.equal(a, b) for a, b in zip(image, other, strict=True))


def noise_like(batch: Batch) -> Batch:
    """Return a batch of noise of the same shapes, mean and standard deviation; integers are as they were."""

    def noise(path: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        return torch.randn_like(tensor) * tensor.std(correction=0) + tensor.mean()

    return replace(batch, args=map_tensors(batch.args, noise))
