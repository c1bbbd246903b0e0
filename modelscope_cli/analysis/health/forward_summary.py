"""The results of the forward passes of `check`, of one batch and of all."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from modelscope_cli.analysis.activations.observer import Activation, merge_into, to_rows
from modelscope_cli.analysis.health.flow import Flowed
from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.check_evidence import Forward


@dataclass(slots=True)
class ForwardSummary:
    """The results of one batch, or of several.

    Attributes:
        answers: the predicted class of every image; None where the model is not a classifier.
        apart: the largest difference of an output from that for the very first image.
    """

    n_images: int = 0
    outputs: tuple[Activation, ...] = ()
    flow: tuple[Flowed, ...] = ()
    answers: tuple[int, ...] | None = ()
    is_input_finite: bool = True
    apart: float | None = None

    def add(self, later: "ForwardSummary") -> None:
        """Add the next batch."""
        self.n_images += later.n_images
        outputs = {activation.key: activation for activation in self.outputs}
        merge_into(outputs, later.outputs)
        flow = {(one.call.name, one.call.index): one for one in self.flow}
        for one in later.flow:
            key = one.call.name, one.call.index
            flow[key] = flow[key].merge(one) if key in flow else one
        self.outputs, self.flow = tuple(outputs.values()), tuple(flow.values())
        is_known = self.answers is not None and later.answers is not None
        self.answers = (*(self.answers or ()), *(later.answers or ())) if is_known else None
        self.is_input_finite &= later.is_input_finite
        self.apart = larger(self.apart, later.apart)

    def forward(self, near_zero: float) -> Forward:
        """Return the evidence, in execution order."""
        return Forward(
            activations=to_rows(sorted(self.outputs, key=lambda one: one.call.order)),
            flow=tuple(one.row() for one in sorted(self.flow, key=lambda one: one.call.order)),
            near_zero=near_zero,
            images=self.n_images,
            answers=self.answers,
            is_input_finite=self.is_input_finite,
            output_spread=self.apart,
        )


class OutputDiversity:
    """Compares the output for every image with that for the first, which must come first."""

    def __init__(self) -> None:
        self._first: tuple[list[Tensor], Tensor] | None = None

    def of(self, batch: Batch, output: Tensor | None) -> float | None:
        """Return the largest difference of an output in a batch from the first; None if no image differs."""
        inputs = [tensor for _, tensor in tensors_in(batch.args)]
        has_rows = output is not None and output.ndim > 0 and len(output) == batch.n_images
        if not has_rows or any(tensor.ndim == 0 or len(tensor) != batch.n_images for tensor in inputs):
            return None
        assert output is not None
        apart: list[float] = []
        for i in range(batch.n_images):
            image, row = [tensor[i] for tensor in inputs], output[i].detach()
            if self._first is None:
                self._first = [tensor.clone() for tensor in image], row.clone()
            elif _differ(image, self._first[0]) and row.shape == self._first[1].shape and row.numel():
                apart.append(float((row - self._first[1]).abs().max()))
        return max(apart, default=None)


def larger(one: float | None, other: float | None) -> float | None:
    """Return the larger of two differences, either of which may be None."""
    return max((value for value in (one, other) if value is not None), default=None)


def _differ(image: list[Tensor], other: list[Tensor]) -> bool:
    return any(a.shape == b.shape and not torch.equal(a, b) for a, b in zip(image, other, strict=True))


def noise_like(batch: Batch) -> Batch:
    """Return a batch of noise of the same shapes, mean and standard deviation; integers are kept."""

    def noise(path: str, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor
        return torch.randn_like(tensor) * tensor.std(correction=0) + tensor.mean()

    return replace(batch, args=map_tensors(batch.args, noise))
