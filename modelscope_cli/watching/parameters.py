"""The effect of an optimizer step on its parameters: their norms before it, and the size of the change."""

import contextlib
import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.quantiles import even_sample, in_memory_order
from modelscope_cli.devices import widest_float
from modelscope_cli.hooks.fetch import Deferred, numbers
from modelscope_cli.hooks.torch_private import norms_at_once

# Elements of a larger parameter that are compared, to avoid a second copy of the model in memory.
_SAMPLE = 1 << 14
_MOST_READ = 16  # gradients of a step that is neither recorded nor followed


class Stepper(Protocol):
    """An optimizer, or a substitute for one whose steps are inferred."""

    param_groups: list[dict[str, Any]]


def parameters_of(optimizer: Stepper) -> list[Tensor]:
    """Return the parameters that an optimizer holds, of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


class StepWatch:
    """Compares the parameters of an optimizer before and after a step."""

    def __init__(self, optimizer: Stepper) -> None:
        self._parameters = parameters_of(optimizer)
        with torch.no_grad():
            self._samples = [sample_of(parameter).clone() for parameter in self._parameters]
            # A fused optimizer under AMP gets scaled gradients and divides by the scale itself.
            self._gradients = self._gradient_norms(getattr(optimizer, "grad_scale", None))
            self._weights, self._sampled = norms_of(self._parameters), norms_of(self._samples)

    def replace(self, others: dict[int, Tensor]) -> None:
        """Compare with the tensors that replace those before the step, by the ids of these."""
        for place, old in enumerate(self._parameters):
            new = others.get(id(old))
            if new is not None:
                self._gradients[place] = torch.tensor(-1.0) if old.grad is None else norm_of(old.grad)
                self._parameters[place] = new

    def finish(self, has_closure: bool) -> Deferred[list[tuple[float | None, float, float | None]]]:
        """Return gradient norm, weight norm and relative change of every parameter, in the optimizer's order.

        Args:
            has_closure: whether the step computed the gradients itself, so that the present ones count.
        """
        with torch.no_grad():
            if has_closure:
                self._gradients = self._gradient_norms(None)
            changes = norms_of(
                sample_of(parameter) - sample
                for parameter, sample in zip(self._parameters, self._samples, strict=True)
            )
        n = len(changes)
        return numbers([*self._gradients, *self._weights, *self._sampled, *changes]).then(
            lambda fetched: [
                (None if grad == -1 else grad, weight, change / sampled if sampled else None)
                for grad, weight, sampled, change in zip(
                    *(fetched[i * n : (i + 1) * n] for i in range(4)), strict=True
                )
            ]
        )

    def _gradient_norms(self, scale: Tensor | None) -> list[Tensor]:
        """Return the norm of each gradient, -1 without one."""
        norms = iter(norms_of(p.grad for p in self._parameters if p.grad is not None))
        gradient_norms = [next(norms) if p.grad is not None else torch.tensor(-1.0) for p in self._parameters]
        if scale is None:
            return gradient_norms
        return [
            norm if p.grad is None else norm / scale.to(norm.device)
            for norm, p in zip(gradient_norms, self._parameters, strict=True)
        ]


def is_sharded(x: Tensor) -> bool:
    """Tell whether this process may hold only a part of a tensor, as with `fully_shard` and its predecessor."""
    return hasattr(x, "to_local") or getattr(x, "_fsdp_flattened", False)


def held_here(x: Tensor) -> Tensor:
    """Return the values of a tensor that this process holds, without a collective operation.

    Of a sparse tensor they are the stored values; on the meta device there are none.
    """
    values: Tensor = (x.to_local() if hasattr(x, "to_local") else x).detach()
    if values.is_meta:
        return values.new_empty(0, device="cpu")
    if values.layout is not torch.strided:
        return values.coalesce().values() if values.is_sparse else values.values()
    # 8-bit floating-point numbers and booleans have no arithmetic.
    is_narrow = values.dtype.itemsize == 1 and (values.is_floating_point() or values.dtype == torch.bool)
    return values.float() if is_narrow else values


def sample_of(x: Tensor, least: int = _SAMPLE) -> Tensor:
    """Return an even sample of at least `least` of the elements of a tensor that this process holds."""
    return even_sample(in_memory_order(held_here(x)), least)[0]


def norm_of(x: Tensor) -> Tensor:
    """Return the norm of the elements that this process holds, also complex and integer ones, as a float."""
    values = held_here(x)
    if values.is_complex():
        values = torch.view_as_real(values)
    is_wide = values.dtype == torch.float64 or not values.is_floating_point()
    dtype = widest_float(values.device) if is_wide else torch.float32
    return torch.linalg.vector_norm(values.to(dtype) if is_wide else values, dtype=dtype)


def norms_of(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return `norm_of` each tensor; those of float32 are computed in one call."""
    values = [held_here(x) for x in tensors]
    plain = iter(norms_at_once([x for x in values if x.dtype == torch.float32]))
    return [next(plain) if x.dtype == torch.float32 else norm_of(x) for x in values]


def has_no_gradients(optimizer: Stepper) -> bool:
    return all(p.grad is None for p in parameters_of(optimizer))


def has_finite_gradients(optimizer: Stepper) -> Deferred[bool]:
    """Tell whether the norms of the gradients that an optimizer applies are finite.

    Of many gradients it reads some from all over the model: a value that is not finite spreads to the layers before
    it, and through the step to the next loss.
    """
    grads = [grad for p in parameters_of(optimizer) if (grad := p.grad) is not None]
    if len(grads) > _MOST_READ:
        grads = [*grads[:: math.ceil(len(grads) / _MOST_READ)], grads[-1]]
    is_plain = set(map(type, grads)) == {Tensor} and {x.dtype for x in grads} == {torch.float32}
    with torch.no_grad():
        if is_plain:  # most steps do only this; sparse gradients and several devices are refused
            with contextlib.suppress(RuntimeError, NotImplementedError):
                return Deferred((torch.stack(norms_at_once(grads)).sum(),), math.isfinite)
        return numbers(norms_of(grads)).then(lambda norms: all(map(math.isfinite, norms)))
