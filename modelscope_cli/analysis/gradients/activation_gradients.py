"""The gradient that arrives at every output, by tensor hooks; clipped on the way where that is asked for."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modelscope_cli.analysis.gradients.gradient_statistics import Stream, figures_of, norm_of
from modelscope_cli.analysis.gradients.request import Thresholds
from modelscope_cli.analysis.gradients.vanishing import mark_gradient
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.grads import ActivationGradient

_NOTHING = "no gradient arrived: the loss does not depend on it"
_DETACHED = "takes no gradient: frozen up to here, detached, or under no_grad"


@dataclass(slots=True)
class _Output:
    call: Call
    path: str
    shape: tuple[int, ...]
    is_clipped: bool = False
    after: Stream = field(default_factory=Stream)
    before: Stream = field(default_factory=Stream)
    n_clipped: Tensor | int = 0
    n_passes: int = 0
    problem: str | None = None


class ActivationGradients(Observer):
    """Gathers, for every output of the calls it sees, the gradient that arrives there.

    A tensor hook is registered when the layer's forward ends, so that it belongs to the value the layer gave,
    whatever is done to the tensor in place later on.

    Args:
        is_innermost_only: leave out calls inside which other layers ran, unless they are clipped.
        limit: clamp the gradients at `clipped` outputs into [-limit, limit].
        clipped: the calls that are clamped.

    Attributes:
        is_clipping: whether the clamp is on; a backward pass with it off gives the figures before clipping.
    """

    def __init__(
        self, *, is_innermost_only: bool, limit: float | None = None, clipped: Selection | None = None
    ) -> None:
        self.outputs: dict[tuple[str, int, str], _Output] = {}
        self.is_clipping = limit is not None
        self._is_innermost_only = is_innermost_only
        self._limit = limit
        self._clipped = clipped
        self._handles: list[RemovableHandle] = []

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        is_clipped = self._clipped is not None and _is_meant(call, is_innermost, self._clipped)
        if self._is_innermost_only and not is_innermost and not is_clipped:
            return
        for path, tensor in tensors_in(output):
            one = self._remember(call, path, tensor, is_clipped)
            if tensor.requires_grad:
                self._handles.append(tensor.register_hook(partial(self._arrive, one)))

    def _remember(self, call: Call, path: str, tensor: Tensor, is_clipped: bool = False) -> _Output:
        key = call.name, call.index, path
        if key not in self.outputs:
            self.outputs[key] = _Output(call, path, tuple(tensor.shape), is_clipped)
        one = self.outputs[key]
        one.n_passes += 1
        if not tensor.is_floating_point():
            one.problem = f"{str(tensor.dtype).removeprefix('torch.')} output: no gradient"
        elif not tensor.requires_grad:
            one.problem = _DETACHED
        return one

    def _arrive(self, one: _Output, grad: Tensor | None) -> Tensor | None:
        if grad is None:  # one of the results of `chunk`, and only others were used
            return None
        if self._limit is None:
            self._add(one, one.after, grad)
            return None
        if not self.is_clipping:
            self._add(one, one.before, grad)
            return None
        if not one.is_clipped:
            self._add(one, one.after, grad)
            return None
        one.n_clipped = one.n_clipped + torch.count_nonzero(grad.abs() > self._limit)
        clipped = grad.clamp(-self._limit, self._limit)
        self._add(one, one.after, clipped)
        return clipped

    def _add(self, one: _Output, stream: Stream, grad: Tensor) -> None:
        try:
            stream.add(grad)
        except (TypeError, RuntimeError) as error:
            one.problem = in_one_line(error, 200)

    def settle(self) -> None:
        """Finish a pass: bring the numbers over and let go of the graph."""
        for one in self.outputs.values():
            one.after.settle()
            one.before.settle()
        self.detach()

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def clipped_fraction(self) -> float | None:
        """Return the share of elements clipped at all outputs together; None where nothing is clipped."""
        clipped = [one for one in self.outputs.values() if one.is_clipped and one.after.moments]
        if self._limit is None:
            return None
        n = sum(one.after.moments.numel for one in clipped if one.after.moments)
        return sum(int(one.n_clipped) for one in clipped) / n if n else 0.0

    def rows(self, output_norm: float, thresholds: Thresholds | None) -> tuple[ActivationGradient, ...]:
        """Return one row an output, in execution order."""
        ordered = sorted(self.outputs.values(), key=lambda one: one.call.order)
        return tuple(_to_row(one, output_norm, thresholds) for one in ordered)


def _is_meant(call: Call, is_innermost: bool, selection: Selection) -> bool:
    if selection.wanted is not None:
        return (call.name, call.index) in selection.wanted
    if selection.names is not None:
        return call.name in selection.names
    return is_innermost


def _to_row(one: _Output, output_norm: float, thresholds: Thresholds | None) -> ActivationGradient:
    moments, before = one.after.moments, one.before.moments
    call = one.call
    row: dict[str, Any] = {"name": call.name, "type": call.type, "order": call.order, "call": call.index}
    if moments is None:
        is_unused = one.problem is None
        problem = _NOTHING if is_unused else one.problem
        mark = "unused" if is_unused else ""
        return ActivationGradient(**row, output=one.path, shape=one.shape, mark=mark, problem=problem)
    judged = before or moments
    a_pass = math.sqrt(one.n_passes)
    return ActivationGradient(
        **row,
        output=one.path,
        shape=one.shape,
        **{**figures_of(moments), **({"grad_norm": norm_of(moments) / a_pass} if moments.n else {})},
        norm_before_clip=norm_of(before) / a_pass if before else None,
        clipped_fraction=int(one.n_clipped) / moments.numel if one.is_clipped and moments.numel else None,
        mark=mark_gradient(norm_of(judged) / a_pass, judged.n_nan + judged.n_inf, output_norm, thresholds),
    )


class FullBackwardGradients(ActivationGradients):
    """The same figures through `register_full_backward_hook`, for who wants to compare the two.

    Args:
        names: the layers to hook.
    """

    def __init__(self, names: frozenset[str], *, is_innermost_only: bool) -> None:
        super().__init__(is_innermost_only=is_innermost_only)
        self._names = names
        self._open: dict[nn.Module, list[list[_Output]]] = {}

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        if name not in self._names:
            return []
        self._open[module] = []
        return [module.register_full_backward_hook(self._fire)]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if module in self._open:
            self._open[module].append([self._remember(call, *named) for named in tensors_in(output)])

    def pass_by(self, module: nn.Module, output: Any) -> None:
        if module in self._open:
            self._open[module].append([])

    def _fire(self, module: nn.Module, grad_input: Any, grad_output: tuple[Tensor | None, ...]) -> None:
        # The calls of a layer are left in the reverse of the order they were made in.
        outputs = self._open[module].pop()
        for one, grad in zip(outputs, grad_output, strict=False):
            if grad is not None:
                self._add(one, one.after, grad)

    def settle(self) -> None:
        super().settle()
        for calls in self._open.values():
            calls.clear()
