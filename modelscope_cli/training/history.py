"""Record layers and parameters during training: a hook observer and a callback in one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.records.watch import (
    LayerSeries,
    ParameterSeries,
    ScalarSeries,
    WatchedLayer,
    WatchedParameter,
)
from modelscope_cli.training.runner import Callback, Runner

Row = tuple[Moments, float | None]  # activations, norm of their gradient


class History(Callback, Observer):
    """Records the innermost layers and the trained parameters every `every` steps, the loss at each.

    Both an observer of the `HookSession` around the training and a callback of its runner.
    Gradients are read after the optimizer step, so after clipping.

    Args:
        model: class name of the model.
        every: look at steps 0, every, 2 every ...
        near_zero: below this, |x| counts as near zero.
    """

    def __init__(self, model: str, every: int, near_zero: float) -> None:
        self._model = model
        self.every = every
        self._wanted = Wanted(mad=False, threshold=near_zero, histogram=False)
        self._channels = ChannelFinder()
        self._is_on = self._is_looking = False  # during the forward pass; during the whole batch
        self._calls: dict[tuple[str, int], Call] = {}
        self._rows: dict[tuple[str, int], dict[int, Row]] = {}  # by step: a cancelled batch is repeated
        self._pending: dict[tuple[str, int], Callable[[], Moments]] = {}
        self._gradients: dict[tuple[str, int], Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._updates: dict[str, list[tuple[int, float | None, float, float]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._losses: dict[int, float] = {}
        self._rates: dict[int, float] = {}

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if not (self._is_on and is_innermost):
            return
        tensors = tensors_in(output)
        if not tensors:
            return
        tensor = tensors[0][1]
        key = (call.name, call.index)
        try:
            self._pending[key] = reduce_tensor(tensor, self._channels.find(module, tensor), self._wanted)
        except (TypeError, RuntimeError, NotImplementedError):
            return  # a tensor without statistics has no curves
        self._calls.setdefault(key, call)
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self._take_gradient(key, gradient))

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _take_gradient(self, key: tuple[str, int], gradient: Tensor) -> None:
        self._gradients[key] = torch.linalg.vector_norm(gradient.detach())

    def begin_batch(self, run: Runner) -> None:
        self._is_on = self._is_looking = run.step % self.every == 0
        self._pending.clear()
        self._gradients.clear()

    def begin_loss(self, run: Runner) -> None:
        self._is_on = False

    def after_loss(self, run: Runner) -> None:
        self._losses[run.step] = float(run.loss.detach())
        self._rates[run.step] = float(run.optimizer.param_groups[0]["lr"])

    def begin_step(self, run: Runner) -> None:
        if self._is_looking:
            self._weights = {
                name: parameter.detach().clone()
                for name, parameter in run.model.named_parameters()
                if parameter.requires_grad
            }

    def after_step(self, run: Runner) -> None:
        if not self._is_looking:
            return
        for name, parameter in run.model.named_parameters():
            if (before := self._weights.get(name)) is not None:
                self._shapes[name] = tuple(parameter.shape)
                self._updates.setdefault(name, []).append((run.step, *_update(parameter, before)))
        self._weights = {}

    def after_batch(self, run: Runner) -> None:
        step = max(self._losses, default=0)
        for key, finish in self._pending.items():
            gradient = self._gradients.get(key)
            norm = float(gradient) if gradient is not None else None
            self._rows.setdefault(key, {})[step] = finish(), norm
        self._pending.clear()

    after_fit = after_batch  # a training that ends within a batch

    def layers(self) -> tuple[WatchedLayer, ...]:
        """Return the series of every call, in the order they run."""
        calls = sorted(self._calls.items(), key=lambda item: item[1].order)
        return tuple(
            WatchedLayer(
                self._model, call.name, call.type, call.order, call.index, _layer_series(self._rows[key])
            )
            for key, call in calls
            if key in self._rows
        )

    def parameters(self, optimizer: str) -> tuple[WatchedParameter, ...]:
        return tuple(
            WatchedParameter(self._model, name, optimizer, self._shapes[name], _parameter_series(rows))
            for name, rows in self._updates.items()
        )

    def loss(self, optimizer: str) -> tuple[ScalarSeries, ...]:
        return (ScalarSeries(optimizer, tuple(self._losses), tuple(self._losses.values())),)

    def lr(self, optimizer: str) -> tuple[ScalarSeries, ...]:
        return (ScalarSeries(optimizer, tuple(self._rates), tuple(self._rates.values())),)


def _update(parameter: nn.Parameter, before: Tensor) -> tuple[float | None, float, float]:
    """Return the norms of the gradient, of the weights before, and of the change."""
    gradient = None if parameter.grad is None else float(torch.linalg.vector_norm(parameter.grad))
    change = torch.linalg.vector_norm(parameter.detach() - before)
    return gradient, float(torch.linalg.vector_norm(before)), float(change)


def _layer_series(rows: dict[int, Row]) -> LayerSeries:
    moments = [found for found, _ in rows.values()]
    return LayerSeries(
        step=tuple(rows),
        mean=tuple(m.mean if m.n else None for m in moments),
        std=tuple(m.std if m.n else None for m in moments),
        zero_fraction=tuple((m.n_zero or 0) / m.n if m.n else None for m in moments),
        near_zero_fraction=tuple((m.n_near_zero or 0) / m.n if m.n else None for m in moments),
        nan_count=tuple(m.n_nan for m in moments),
        inf_count=tuple(m.n_inf for m in moments),
        grad_norm=tuple(norm for _, norm in rows.values()),
        dead_fraction=tuple(m.alive.count(False) / len(m.alive) if m.alive else None for m in moments),
    )


def _parameter_series(rows: list[tuple[int, float | None, float, float]]) -> ParameterSeries:
    return ParameterSeries(
        step=tuple(step for step, *_ in rows),
        grad_norm=tuple(gradient for _, gradient, _, _ in rows),
        weight_norm=tuple(weight for _, _, weight, _ in rows),
        update_ratio=tuple(change / weight if weight else None for _, _, weight, change in rows),
    )
