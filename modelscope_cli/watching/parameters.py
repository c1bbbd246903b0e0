"""What one optimizer step does to the parameters: norms before it, and the size of the change."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.sampling import even_sample, in_memory_order

# A larger parameter gives its relative change from an even sample of this many elements: no second model in memory.
_SAMPLE = 1 << 14


@dataclass(slots=True)
class _Before:
    parameter: Tensor
    sample: Tensor
    norms: list[Tensor]  # of the gradient (-1: there is none), of the weights, of the sample


class Stepper(Protocol):
    """What takes steps: an optimizer, or what stands in for one."""

    param_groups: list[dict[str, Any]]


class StepWatch:
    """Look at an optimizer's parameters before a step, and again after it."""

    def __init__(self, optimizer: Stepper) -> None:
        # A fused optimizer under AMP is handed scaled gradients and divides by the scale itself.
        scale = getattr(optimizer, "grad_scale", None)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with torch.no_grad():
            self._before = [_look(parameter, scale) for parameter in parameters]

    def replace(self, others: dict[int, Tensor]) -> None:
        """Compare with other tensors than those that were there before, by the ids of these."""
        for one in self._before:
            new = others.get(id(one.parameter))
            if new is not None:
                one.norms[0] = _gradient_norm(one.parameter, None)
                one.parameter = new

    def finish(self, has_closure: bool) -> list[tuple[float | None, float, float | None]]:
        """Return gradient norm, weight norm and relative change of every parameter, in the optimizer's order.

        Args:
            has_closure: the gradients were computed by the step itself, so they are those that are there now.
        """
        with torch.no_grad():
            if has_closure:
                for one in self._before:
                    one.norms[0] = _gradient_norm(one.parameter, None)
            changes = [norm_of(sample_of(one.parameter) - one.sample) for one in self._before]
        # One transfer a device: nothing waits for an accelerator before the end.
        columns = [
            torch.stack([norm.to("cpu").double() for norm in (*one.norms, change)])
            for one, change in zip(self._before, changes, strict=True)
        ]
        rows = torch.stack(columns).tolist() if columns else []
        return [
            (None if grad == -1 else grad, weight, change / sampled if sampled else None)
            for grad, weight, sampled, change in rows
        ]


def is_sharded(x: Tensor) -> bool:
    """Tell whether this process may hold but a part of a tensor, as `fully_shard` and its predecessor leave it."""
    return hasattr(x, "to_local") or getattr(x, "_fsdp_flattened", False)


def held_here(x: Tensor) -> Tensor:
    """Return the values of a tensor that this process holds; to ask others for theirs would change the training.

    Of a sparse tensor they are those that are stored; on the meta device there are none.
    """
    here: Tensor = (x.to_local() if hasattr(x, "to_local") else x).detach()
    if here.is_meta:
        return here.new_empty(0, device="cpu")
    if here.layout is not torch.strided:
        return here.coalesce().values() if here.is_sparse else here.values()
    # There is no arithmetic on floating-point numbers of eight bits, nor on booleans.
    is_narrow = here.dtype.itemsize == 1 and (here.is_floating_point() or here.dtype == torch.bool)
    return here.float() if is_narrow else here


def _look(parameter: Tensor, scale: Tensor | None) -> _Before:
    sample = sample_of(parameter).clone()
    weight_norm = norm_of(parameter)
    sampled_norm = weight_norm if sample.numel() == held_here(parameter).numel() else norm_of(sample)
    return _Before(parameter, sample, [_gradient_norm(parameter, scale), weight_norm, sampled_norm])


def _gradient_norm(parameter: Tensor, scale: Tensor | None) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return held_here(parameter).new_tensor(-1.0, dtype=torch.float32)
    norm = norm_of(gradient)
    return norm if scale is None else norm / scale.to(norm.device)


def sample_of(x: Tensor, least: int = _SAMPLE) -> Tensor:
    """Return an even sample of at least so many elements of what this process holds of a tensor."""
    return even_sample(in_memory_order(held_here(x)), least)[0]


def norm_of(x: Tensor) -> Tensor:
    """Return the norm of what this process holds, complex and whole numbers too, in float32 or float64."""
    values = held_here(x)
    if values.is_complex():
        values = torch.view_as_real(values)
    is_wide = values.dtype == torch.float64 or not values.is_floating_point()
    values = values.double() if is_wide else values
    return torch.linalg.vector_norm(values, dtype=torch.float64 if is_wide else torch.float32)
