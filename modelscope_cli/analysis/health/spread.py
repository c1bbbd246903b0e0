"""How far the outputs for different images lie apart."""

from dataclasses import replace

import torch
from torch import Tensor

from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.inputs.batch import Batch


class Spread:
    """Holds the output for every image against the one for the first.

    Attributes:
        value: the largest difference of an output from the first; None before there are two different images.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self._first: tuple[list[Tensor], Tensor] | None = None

    def add(self, batch: Batch, output: Tensor | None) -> None:
        """Take a batch and what the model made of it."""
        given = [tensor for _, tensor in tensors_in(batch.args)]
        has_rows = output is not None and output.ndim > 0 and len(output) == batch.n_images
        if not has_rows or any(tensor.ndim == 0 or len(tensor) != batch.n_images for tensor in given):
            return
        assert output is not None
        for i in range(batch.n_images):
            image, row = [tensor[i] for tensor in given], output[i].detach()
            if self._first is None:
                self._first = [tensor.clone() for tensor in image], row.clone()
            elif _differ(image, self._first[0]) and row.shape == self._first[1].shape and row.numel():
                apart = float((row - self._first[1]).abs().max())
                self.value = apart if self.value is None else max(self.value, apart)


def _differ(image: list[Tensor], other: list[Tensor]) -> bool:
    return any(a.shape == b.shape and not torch.equal(a, b) for a, b in zip(image, other, strict=True))


def noise_like(batch: Batch) -> Batch:
    """Return a batch of noise of the same shapes, mean and standard deviation; integers are as they were."""

    def noise(path: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        return torch.randn_like(tensor) * tensor.std(correction=0) + tensor.mean()

    return replace(batch, args=map_tensors(batch.args, noise))
