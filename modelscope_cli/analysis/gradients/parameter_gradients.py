"""The gradient of every parameter: clipped by hooks during the backward pass, averaged over passes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.analysis.gradients.gradient_statistics import Mean, dense, figures_of, norm_of
from modelscope_cli.analysis.gradients.request import Clip, Thresholds
from modelscope_cli.analysis.gradients.vanishing import mark_gradient
from modelscope_cli.hooks.layers import type_of
from modelscope_cli.records.gradient_scale import is_judged
from modelscope_cli.records.grads import ParameterGradient
from modelscope_cli.records.naming import layer_of


@dataclass(slots=True)
class _Parameter:
    name: str
    layer: str
    type: str
    order: int
    value: nn.Parameter
    after: Mean = field(default_factory=Mean)
    before: Mean = field(default_factory=Mean)
    unclipped: Tensor | None = None  # of the pass under way
    n_clipped: Tensor | int = 0


class ParameterGradients:
    """Gathers the gradients of a model's parameters, pass by pass.

    Args:
        clip: `value` acts through a hook on each parameter, `norm` once they are all there. `activations`, and
            no clip at all, leave them as they come.
        weight_decay: of the prior that is part of the loss; its share of each gradient is told apart.
    """

    def __init__(self, model: nn.Module, clip: Clip | None, weight_decay: float) -> None:
        self._clip = clip
        self._weight_decay = weight_decay
        modules = dict(model.named_modules())
        self._parameters = [
            _Parameter(name, layer, type_of(modules[layer]), 0, parameter)
            for name, parameter in model.named_parameters()  # one that is shared counts once
            for layer in [layer_of(name)]
        ]
        self._n_passes = 0
        self._n_scaled = 0

    def _trained(self) -> Iterator[_Parameter]:
        return (one for one in self._parameters if one.value.requires_grad)

    def values(self) -> list[nn.Parameter]:
        """Return the parameters that are trained."""
        return [one.value for one in self._trained()]

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Keep the hooks that clip on the parameters."""
        handles: list[RemovableHandle] = []
        try:
            if self._clip is not None and self._clip.kind == "value":
                for one in self._trained():
                    clamp = partial(self._clamp, one, self._clip.value)
                    handles.append(one.value.register_hook(clamp))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _clamp(self, one: _Parameter, limit: float, grad: Tensor) -> Tensor:
        is_sparse, grad = grad.is_sparse, dense(grad)
        if one.unclipped is None:
            one.unclipped = grad
            clipped = grad.clamp(-limit, limit)
            return clipped.to_sparse() if is_sparse else clipped  # a hook may not change the kind
        # Out of a reentrant checkpoint, the gradient of a shared parameter comes in parts: their sum is clamped.
        one.unclipped = one.unclipped + grad
        assert one.value.grad is not None
        return one.unclipped.clamp(-limit, limit) - one.value.grad

    def _arrived(self) -> Iterator[tuple[_Parameter, Tensor]]:
        for one in self._trained():
            if one.value.grad is not None:
                one.value.grad = dense(one.value.grad)
                yield one, one.value.grad

    def take_before(self) -> None:
        """Take what a backward pass without clipping gave, and clear the gradients for the one with it."""
        for one, grad in self._arrived():
            one.before.add(grad)
            one.value.grad = None

    def take(self) -> None:
        """Take the gradients of the pass, scaled to the global norm where that was asked for."""
        self._n_passes += 1
        if self._clip is not None and self._clip.kind == "norm":
            for one, grad in self._arrived():
                one.before.add(grad.clone())
            total = nn.utils.clip_grad_norm_(self.values(), self._clip.value)
            self._n_scaled += int(not bool(total <= self._clip.value))  # NaN makes every gradient NaN
        for one in self._trained():
            if self._clip is not None and one.unclipped is not None:
                one.before.add(one.unclipped)
                one.n_clipped = one.n_clipped + torch.count_nonzero(one.unclipped.abs() > self._clip.value)
                one.unclipped = None
        for one, grad in self._arrived():
            one.after.add(grad)
            one.value.grad = None

    def rows(
        self, orders: Mapping[str, int], output_norm: float, thresholds: Thresholds | None
    ) -> tuple[ParameterGradient, ...]:
        """Return one row a parameter, in execution order."""
        for one in self._parameters:
            one.order = _order_of(one.layer, orders)
        ordered = sorted(self._parameters, key=lambda one: one.order)
        return tuple(self._row(one, output_norm, thresholds) for one in ordered)

    def _row(self, one: _Parameter, output_norm: float, thresholds: Thresholds | None) -> ParameterGradient:
        weight_norm = _norm(one.value)
        row: dict[str, Any] = {
            "name": one.name,
            "layer": one.layer,
            "type": one.type,
            "order": one.order,
            "shape": tuple(one.value.shape),
            "numel": one.value.numel(),
            "trainable": one.value.requires_grad,
            "weight_norm": weight_norm,
        }
        if one.after.value is None:
            is_frozen = not one.value.requires_grad
            problem = None if is_frozen else "no gradient arrived: the loss does not depend on it"
            return ParameterGradient(**row, mark="frozen" if is_frozen else "unused", problem=problem)
        try:
            moments = one.after.moments()
            before = one.before.moments() if one.before.value is not None else None
        except TypeError as error:
            return ParameterGradient(**row, problem=str(error))
        norm = norm_of(moments)
        norm_before = norm_of(before) if before is not None else None
        judged = before or moments
        noise = one.after.noise
        return ParameterGradient(
            **row,
            **figures_of(moments),
            **self._decayed(one, weight_norm),
            zero_fraction=(moments.n_zero or 0) / moments.n if moments.n else None,
            grad_to_weight=norm / weight_norm if weight_norm and moments.n else None,
            norm_before_clip=norm_before,
            clipped_fraction=self._clipped_fraction(one),
            noise=noise,
            snr=norm / noise if noise else None,
            mark=mark_gradient(
                norm_of(judged),
                judged.n_nan + judged.n_inf,
                output_norm,
                thresholds if is_judged(one.value.shape) else None,
            ),
        )

    def _decayed(self, one: _Parameter, weight_norm: float) -> dict[str, Any]:
        """Tell the share of the likelihood in a gradient from that of the prior; nothing without weight decay."""
        whole = one.after.value if one.before.value is None else one.before.value
        if not self._weight_decay > 0 or whole is None:
            return {}
        likelihood = torch.sub(whole, one.value.detach(), alpha=self._weight_decay)
        return {
            "likelihood_norm": float(torch.linalg.vector_norm(likelihood)),
            "prior_norm": self._weight_decay * weight_norm,
        }

    def _clipped_fraction(self, one: _Parameter) -> float | None:
        if self._clip is None or self._clip.kind == "activations" or not one.value.numel():
            return None
        if self._clip.kind == "norm":
            return self._n_scaled / self._n_passes
        return int(one.n_clipped) / (one.value.numel() * max(one.before.n, 1))


def _norm(parameter: nn.Parameter) -> float:
    value = parameter.detach()
    if value.is_nested:
        value = torch.cat([part.flatten() for part in value.unbind()])
    elif value.layout == torch.sparse_coo:
        value = value.coalesce().values()
    elif value.layout != torch.strided:
        value = value.to_dense() if value.is_mkldnn else value.values()
    value = value.dequantize() if value.is_quantized else value
    is_number = value.is_floating_point() or value.is_complex()
    return float(torch.linalg.vector_norm(value if is_number else value.float(), dtype=torch.float32))


def _order_of(layer: str, orders: Mapping[str, int]) -> int:
    """Return when a layer is called first, or the nearest one around it: attention's weights lie in a layer that
    never is."""
    while layer not in orders and layer:
        layer = layer.rpartition(".")[0]
    return orders.get(layer, 0)


def global_norm(rows: Sequence[ParameterGradient], column: str) -> float:
    """Return the norm of all gradients together, NaN where one holds a NaN or an infinite value."""
    if any(row.nan_count or row.inf_count for row in rows):
        return math.nan
    return math.sqrt(sum((getattr(row, column) or 0.0) ** 2 for row in rows))
