"""The gradient of every parameter: averaged over passes, then clipped."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.gradient_statistics import Mean, dense, figures_of, norm_of
from modelscope_cli.analysis.gradients.request import Clip, Thresholds
from modelscope_cli.analysis.gradients.vanishing import mark_gradient
from modelscope_cli.hooks.layers import type_of
from modelscope_cli.records.grads import ParameterGradient, is_judged
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


class ParameterGradients:
    """Gathers the gradients of a model's parameters, pass by pass.

    Args:
        clip: `value` and `norm` act on the mean over all passes, as training clips the gradient of a batch;
            `activations` has acted already when a gradient arrives.
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
        self._is_clipping_flow = clip is not None and clip.kind == "activations"
        self._is_scaled = False

    def _trained(self) -> Iterator[_Parameter]:
        return (one for one in self._parameters if one.value.requires_grad)

    def values(self) -> list[nn.Parameter]:
        """Return the parameters that are trained."""
        return [one.value for one in self._trained()]

    def _arrived(self) -> Iterator[tuple[_Parameter, Tensor]]:
        for one in self._trained():
            if one.value.grad is not None:
                one.value.grad = dense(one.value.grad)
                yield one, one.value.grad

    def take_before(self, n_images: int) -> None:
        """Take what a backward pass without clipping gave, and clear the gradients for the one with it."""
        for one, grad in self._arrived():
            one.before.add(grad, n_images)
            one.value.grad = None

    def take(self, n_images: int) -> None:
        """Take the gradients of the pass, the mean over so many images."""
        for one, grad in self._arrived():
            one.after.add(grad, n_images)
            one.value.grad = None

    def clip_mean(self) -> None:
        """Clip the mean over all passes with torch's own functions: the gradient of one batch of all images."""
        if self._clip is None or self._is_clipping_flow:
            return
        arrived = [one for one in self._trained() if one.after.value is not None]
        for one in arrived:
            one.before, one.after = one.after, Mean()
            assert one.before.value is not None
            one.value.grad = one.before.value.clone()
        values, limit = [one.value for one in arrived], self._clip.value
        if self._clip.kind == "norm":
            total = nn.utils.clip_grad_norm_(values, limit)
            self._is_scaled = not bool(total <= limit)  # NaN makes every gradient NaN
        else:
            nn.utils.clip_grad_value_(values, limit)
        self.take(1)

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
        is_mean_clipped = before is not None and not self._is_clipping_flow
        noise = one.before.noise if is_mean_clipped else one.after.noise
        return ParameterGradient(
            **row,
            **figures_of(moments),
            **self._decayed(one, weight_norm),
            zero_fraction=(moments.n_zero or 0) / moments.n if moments.n else None,
            grad_to_weight=norm / weight_norm if weight_norm and moments.n else None,
            norm_before_clip=norm_before,
            clipped_fraction=self._clipped_fraction(one),
            noise=noise,
            snr=(norm_of(judged) if is_mean_clipped else norm) / noise if noise else None,
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
        if self._clip is None or self._is_clipping_flow or one.before.value is None or not one.value.numel():
            return None
        if self._clip.kind == "norm":
            return float(self._is_scaled)
        return int((one.before.value.abs() > self._clip.value).sum()) / one.value.numel()


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
