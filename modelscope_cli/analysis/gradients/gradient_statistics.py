"""Streaming statistics of gradients: of one tensor over several passes, or of its mean over them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.analysis.statistics.moments import RANGE, RANGE_AND_ZEROS, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.devices import widest_float
from modelscope_cli.errors import refuse_failed_device
from modelscope_cli.hooks.fetch import Deferred, joined, numbers
from modelscope_cli.hooks.layers import tensors_in, type_of
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.grads import (
    NEVER_CALLED,
    ActivationGradient,
    ClipInfo,
    ParameterGradient,
    is_judged,
    mark,
)
from modelscope_cli.records.naming import layer_of


def norm_of(moments: Moments) -> float:
    """Return the Euclidean norm of the finite values; 0 where there are none."""
    return moments.rms * math.sqrt(moments.n) if moments.n else 0.0


def figures_of(moments: Moments) -> dict[str, Any]:
    """Return the columns about the values of a gradient."""
    non_finite = {"nan_count": moments.n_nan, "inf_count": moments.n_inf}
    if not moments.n:
        return non_finite
    return {
        "grad_norm": norm_of(moments),
        "grad_mean": moments.mean,
        "grad_std": moments.std,
        "grad_min": moments.low,
        "grad_max": moments.high,
        "grad_abs_max": max(abs(moments.low), abs(moments.high)),
        **non_finite,
    }


def dense(grad: Tensor) -> Tensor:
    """Return a gradient as a dense tensor; that of an embedding may be sparse."""
    return grad.to_dense() if grad.is_sparse else grad


@dataclass(slots=True)
class Mean:
    """The mean of a gradient over passes and the noise around it, without keeping the passes.

    D. H. D. West, "Updating Mean and Variance Estimates" (1979), with a vector as the mean and a number as the
    weighted sum of squared distances from it.
    """

    n: int = 0
    value: Tensor | None = None
    _weights: int = 0
    _squared_weights: int = 0
    _squares: Tensor | None = None  # None with fewer than two passes

    def add(self, grad: Tensor, weight: int = 1) -> None:
        """Add a gradient, the mean over `weight` images; the caller must not change it afterwards."""
        self.n += 1
        self._weights += weight
        self._squared_weights += weight**2
        if self.value is None:
            self.value = grad
            return
        delta = grad - self.value
        self.value = self.value + delta * (weight / self._weights)
        square = length(delta, widest_float(delta.device)).square() * (weight * (1 - weight / self._weights))
        self._squares = square if self._squares is None else self._squares + square

    def noise(self) -> Deferred[float | None]:
        """Root of the trace of the covariance between passes; None with fewer than two."""
        if self._squares is None:
            return Deferred((), lambda: None)
        weight = self._weights - self._squared_weights / self._weights
        return Deferred((self._squares,), lambda squares: math.sqrt(float(squares) / weight))

    def moments(self) -> Deferred[Moments | None]:
        if self.value is None:
            return Deferred((), lambda: None)
        return reduce_tensor(self.value, None, RANGE_AND_ZEROS).then(lambda moments: moments)


def mark_gradient(norm: float, n_non_finite: int, output_norm: float, *, by_size: bool) -> str:
    """Return the mark of a gradient, empty if nothing is wrong.

    Args:
        norm: of its finite values, before clipping.
        n_non_finite: how many values are NaN or infinite.
        output_norm: norm of the gradient at the output of the model.
        by_size: also mark gradients that vanish or explode, not only those that are zero or not finite.
    """
    if n_non_finite:
        return "non-finite"
    found = mark(norm, output_norm)
    return found if by_size or found == "zero" else ""


_NOTHING, _DETACHED = "no gradient", "frozen or detached"
# Modules that hold parameters for the module around them, and are not called themselves
_HOLDERS = "ParameterList", "ParameterDict", "NonDynamicallyQuantizableLinear"  # the last: of attention


@dataclass(slots=True)
class _Output:
    call: Call
    path: str
    shape: tuple[int, ...]
    n_passes: int = 0
    problem: str | None = None
    moments: Moments | None = None  # of all gradients that arrived; none of them is kept
    size: float | None = None  # of the values: their norms in all passes added up; None for integers
    # Of passes that are not read yet
    grads: list[Deferred[Moments]] = field(default_factory=list)
    norms: list[Tensor] = field(default_factory=list)

    def add(self, grad: Tensor) -> None:
        """Start to reduce a gradient; raises TypeError for kinds without statistics."""
        self.grads.append(reduce_tensor(dense(grad), None, RANGE))

    def settled(self) -> Deferred[None]:
        """Merge the results of the pass."""
        parts: list[Deferred[Any]] = [joined(self.grads), numbers(self.norms)]
        self.grads, self.norms = [], []
        return joined(parts).then(lambda read: self._merge(*read))

    def _merge(self, grads: list[Moments], norms: list[float]) -> None:
        for moments in grads:
            self.moments = self.moments.merge(moments) if self.moments else moments
        self.size = sum(norms, self.size or 0.0) if norms else self.size


class ActivationGradients(Observer):
    """Collects the gradient at every output of the observed calls.

    A tensor hook is registered when the layer's forward ends, so it belongs to the value the layer returned, even
    if the tensor is changed in place later.

    Args:
        is_innermost_only: leave out calls inside which other layers ran.
    """

    def __init__(self, *, is_innermost_only: bool) -> None:
        self.outputs: dict[tuple[str, int, str], _Output] = {}
        self._is_innermost_only = is_innermost_only
        self._handles: list[RemovableHandle] = []

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if self._is_innermost_only and not is_innermost:
            return
        for path, tensor in tensors_in(output):
            entry = self._remember(call, path, tensor)
            if tensor.is_floating_point():  # now, as the next layer may change it in place
                entry.norms.append(_norm(tensor))
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(partial(self._arrive, entry)))

    def _remember(self, call: Call, path: str, tensor: Tensor) -> _Output:
        key = call.name, call.index, path
        if key not in self.outputs:
            self.outputs[key] = _Output(call, path, tuple(tensor.shape))
        entry = self.outputs[key]
        entry.n_passes += 1
        if not tensor.is_floating_point():
            entry.problem = f"{str(tensor.dtype).removeprefix('torch.')} output: no gradient"
        elif not tensor.requires_grad:
            entry.problem = _DETACHED
        return entry

    def _arrive(self, entry: _Output, grad: Tensor | None) -> None:
        if grad is None:  # an unused result of `chunk`
            return
        try:
            entry.add(grad)
        except (TypeError, RuntimeError) as error:
            refuse_failed_device(error)
            entry.problem = in_one_line(error, 200)

    def settled(self) -> Deferred[list[None]]:
        """Merge the results of the pass."""
        return joined(entry.settled() for entry in self.outputs.values())

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def rows(self, output_norm: float, *, by_size: bool) -> tuple[ActivationGradient, ...]:
        """Return one row an output, in execution order; `by_size` as in `mark_gradient`."""
        ordered = sorted(self.outputs.values(), key=lambda entry: entry.call.order)
        return tuple(_to_row(entry, output_norm, by_size) for entry in ordered)


def _to_row(entry: _Output, output_norm: float, by_size: bool) -> ActivationGradient:
    moments = entry.moments
    row: dict[str, Any] = {**entry.call.fields, "output": entry.path, "shape": entry.shape}
    row["is_zero"] = entry.size == 0 and 0 not in entry.shape
    if moments is None:
        is_unused = entry.problem is None
        problem = _NOTHING if is_unused else entry.problem
        mark = "unused" if is_unused else ""
        return ActivationGradient(**row, mark=mark, problem=problem)
    norm = norm_of(moments) / math.sqrt(entry.n_passes)
    return ActivationGradient(
        **row,
        **{**figures_of(moments), **({"grad_norm": norm} if moments.n else {})},
        mark=mark_gradient(norm, moments.n_nan + moments.n_inf, output_norm, by_size=by_size),
    )


@dataclass(slots=True)
class _Parameter:
    name: str
    layer: str
    type: str
    order: int
    value: nn.Parameter
    is_called: bool = True  # whether its layer is
    after: Mean = field(default_factory=Mean)
    before: Mean = field(default_factory=Mean)


@dataclass(frozen=True, slots=True)
class ParameterFigures:
    """The numbers of one parameter; None where there is none."""

    weight_norm: float
    after: Moments | None = None
    before: Moments | None = None
    noise: float | None = None
    clipped: float | None = None  # share of its values
    problem: str | None = None  # why its gradient has no statistics


class ParameterGradients:
    """Collects the gradients of a model's parameters, pass by pass.

    Args:
        clip: acts on the mean over all passes, as training clips the gradient of a batch.
    """

    def __init__(self, model: nn.Module, clip: ClipInfo | None) -> None:
        self._clip = clip
        modules = dict(model.named_modules())
        self._parameters = [
            _Parameter(name, layer, type_of(modules[layer]), 0, parameter)
            for name, parameter in model.named_parameters()  # one that is shared counts once
            for layer in [layer_of(name)]
        ]
        self._is_scaled = torch.tensor(False)  # whether clipping by the norm changed the gradients

    def _trained(self) -> Iterator[_Parameter]:
        return (entry for entry in self._parameters if entry.value.requires_grad)

    def _arrived(self) -> Iterator[tuple[_Parameter, Tensor]]:
        for entry in self._trained():
            if entry.value.grad is not None:
                entry.value.grad = dense(entry.value.grad)
                yield entry, entry.value.grad

    def take(self, n_images: int) -> None:
        """Take the gradients of the pass, the mean over this many images, and clear them."""
        for entry, grad in self._arrived():
            entry.after.add(grad, n_images)
            entry.value.grad = None

    def clip_mean(self) -> None:
        """Clip the mean over all passes with torch's own functions: the gradient of one batch of all images."""
        if self._clip is None:
            return
        arrived = [entry for entry in self._trained() if entry.after.value is not None]
        for entry in arrived:
            entry.before, entry.after = entry.after, Mean()
            assert entry.before.value is not None
            entry.value.grad = entry.before.value.clone()
        values, limit = [entry.value for entry in arrived], self._clip.value
        if self._clip.kind == "norm":
            total = nn.utils.clip_grad_norm_(values, limit)
            self._is_scaled = ~(total <= limit)  # NaN makes every gradient NaN
        else:
            nn.utils.clip_grad_value_(values, limit)
        self.take(1)

    def figures(self) -> Deferred[list[ParameterFigures]]:
        """Return the numbers of every parameter."""
        return joined(map(self._figures, self._parameters))

    def _figures(self, entry: _Parameter) -> Deferred[ParameterFigures]:
        weight = numbers([_norm(entry.value)]).then(lambda norms: norms[0])
        try:
            moments = [entry.after.moments(), entry.before.moments()]
        except TypeError as error:
            problem = str(error)
            return weight.then(lambda norm: ParameterFigures(norm, problem=problem))
        whole = entry.after if entry.before.value is None else entry.before
        parts: list[Deferred[Any]] = [weight, *moments, whole.noise(), self._clipped(entry)]
        return joined(parts).then(lambda figures: ParameterFigures(*figures))

    def rows(
        self,
        figures: Sequence[ParameterFigures],
        orders: Mapping[str, int],
        output_norm: float,
        *,
        by_size: bool,
    ) -> tuple[ParameterGradient, ...]:
        """Return one row a parameter, in execution order; `by_size` as in `mark_gradient`."""
        for entry in self._parameters:
            around = entry.layer  # or its nearest parent that is called: attention calls no projection
            while around not in orders and around:
                around = around.rpartition(".")[0]
            entry.order = orders.get(around, 0)
            entry.is_called = entry.layer in orders or entry.type in _HOLDERS
        pairs = zip(self._parameters, figures, strict=True)
        ordered = sorted(pairs, key=lambda pair: pair[0].order)
        return tuple(self._row(entry, numbers, output_norm, by_size) for entry, numbers in ordered)

    def _row(
        self, entry: _Parameter, figures: ParameterFigures, output_norm: float, by_size: bool
    ) -> ParameterGradient:
        row: dict[str, Any] = {
            "name": entry.name,
            "layer": entry.layer,
            "type": entry.type,
            "order": entry.order,
            "shape": tuple(entry.value.shape),
            "numel": entry.value.numel(),
            "trainable": entry.value.requires_grad,
            "weight_norm": figures.weight_norm,
        }
        if entry.after.value is None:
            is_frozen = not entry.value.requires_grad
            problem = None if is_frozen else _NOTHING if entry.is_called else NEVER_CALLED
            return ParameterGradient(**row, mark="frozen" if is_frozen else "unused", problem=problem)
        moments, before, noise = figures.after, figures.before, figures.noise
        if moments is None:
            return ParameterGradient(**row, problem=figures.problem)
        norm, weight_norm = norm_of(moments), figures.weight_norm
        norm_before = norm_of(before) if before is not None else None
        unclipped = before or moments
        return ParameterGradient(
            **row,
            **figures_of(moments),
            zero_fraction=(moments.n_zero or 0) / moments.n if moments.n else None,
            grad_to_weight=norm / weight_norm if weight_norm and moments.n else None,
            norm_before_clip=norm_before,
            clipped_fraction=figures.clipped,
            noise=noise,
            snr=norm_of(unclipped) / noise if noise else None,
            mark=mark_gradient(
                norm_of(unclipped),
                unclipped.n_nan + unclipped.n_inf,
                output_norm,
                by_size=by_size and is_judged(entry.value.shape),
            ),
        )

    def _clipped(self, entry: _Parameter) -> Deferred[float | None]:
        n, before = entry.value.numel(), entry.before.value
        if self._clip is None or before is None or not n:
            return Deferred((), lambda: None)
        if self._clip.kind == "norm":
            return Deferred((self._is_scaled,), float)
        return Deferred(((before.abs() > self._clip.value).sum(),), lambda clipped: int(clipped) / n)


def _norm(tensor: Tensor) -> Tensor:
    value = tensor.detach()
    if value.is_nested:
        value = torch.cat([part.flatten() for part in value.unbind()])
    elif value.layout == torch.sparse_coo:
        value = value.coalesce().values()
    elif value.layout != torch.strided:
        value = value.to_dense() if value.is_mkldnn else value.values()
    value = value.dequantize() if value.is_quantized else value
    is_number = value.is_floating_point() or value.is_complex()
    return length(value if is_number else value.float())


def length(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the root of the sum of squares, of complex numbers of their magnitudes."""
    return torch.linalg.vector_norm(values.abs() if values.is_complex() else values, dtype=dtype)


def global_norm(rows: Sequence[ParameterGradient], column: str) -> float:
    """Return the norm of all gradients together, NaN where one holds a NaN or an infinite value."""
    if any(row.nan_count or row.inf_count for row in rows):
        return math.nan
    return math.sqrt(sum((getattr(row, column) or 0.0) ** 2 for row in rows))
