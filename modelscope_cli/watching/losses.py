"""The loss: the scalar on which `backward` is called, without the factor of a gradient scaler."""

import functools
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.fetch import Deferred, numbers
from modelscope_cli.hooks.torch_private import in_backward, left_alone_by_compiler
from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.functional import shown_gradients

_SCALED = "modelscope_scaled"  # in the metadata of a node of the graph: the scale and the loss before it
_NEAR = 32  # nodes of the graph between a loss and the output of a scaler
_MOST_PENDING = 64


class LossWatch:
    """The sum of the losses between two steps, whose gradient is the accumulated one."""

    def __init__(self) -> None:
        self.n_backward = 0
        self.scale = 1.0  # factor of a gradient scaler, in the running backward pass
        self._pending: list[Tensor] = []
        self._derived: list[Tensor] = []  # losses given to `torch.autograd.grad`
        self._sum: float | None = None  # of the losses fetched so far
        self.has_scaler = False
        self._seen_by_step: int | None = None  # backward passes before the running step

    @property
    def is_reevaluated(self) -> bool:
        """Whether the running step has called its closure before: only the first call counts."""
        return self._seen_by_step is not None and self.n_backward > self._seen_by_step

    @property
    def is_finite(self) -> bool:
        """Whether the losses since the last step that were added up are finite."""
        return self._sum is None or math.isfinite(self._sum)

    @property
    def is_computed_later(self) -> bool:
        """Whether the last loss is on a device that computes while the script goes on."""
        return bool(self._pending) and self._pending[-1].device.type not in ("cpu", "meta")

    def begin_step(self) -> None:
        self._seen_by_step = self.n_backward

    def end_step(self) -> bool:
        """Tell whether the step called a closure that ran backward."""
        has_closure = self.is_reevaluated
        self._seen_by_step = None
        return has_closure

    def take(self) -> Deferred[float | None]:
        """Return the loss since the last step, None without one, and reset."""
        before, pending = self._sum, self._pending or (self._derived if self._sum is None else [])
        self.drop()
        return numbers(pending).then(lambda losses: (before or 0.0) + sum(losses) if losses else before)

    def drop(self) -> None:
        """Discard the losses since the last step, which belong to a model that is not watched."""
        self._pending, self._derived, self._sum = [], [], None

    def add_up(self) -> Deferred[None]:
        """Add up the losses so far."""
        pending, self._pending = self._pending, []
        return numbers(pending).then(self._add)

    def _add(self, losses: list[float]) -> None:
        if losses:
            self._sum = (self._sum or 0.0) + sum(losses)

    @left_alone_by_compiler
    def remember_scaled(self, scaled: Any, plain: Any, scale: float) -> None:
        """Note in the graph that `scaled` is `scale` times the loss `plain`."""
        self.has_scaler = True
        if isinstance(scaled, Tensor) and isinstance(plain, Tensor) and scaled.grad_fn is not None:
            _metadata(scaled.grad_fn)[_SCALED] = scale, plain.detach()

    def see(self, tensors: Any) -> None:
        """Add the tensors on which `backward` is called."""
        is_counted = not self.is_reevaluated
        self.n_backward += 1
        for tensor in (tensors,) if isinstance(tensors, Tensor) else tuple(tensors):
            if not isinstance(tensor, Tensor):
                continue
            self.scale, loss = self._unscaled(tensor)
            if loss.numel() == 1 and is_counted:
                # A copy, as scripts may change the loss in place.
                self._pending.append(loss.clone() if not loss.ndim else loss.reshape(()).clone())
        if len(self._pending) >= _MOST_PENDING:
            self.add_up()()

    def see_derived(self, loss: Any, parameters: tuple[Any, ...]) -> None:
        """Add a loss whose derivatives by parameters are computed; it counts if `backward` is never called."""
        is_loss = isinstance(loss, Tensor) and loss.numel() == 1
        if is_loss and any(isinstance(one, nn.Parameter) for one in parameters):
            self._derived = [*self._derived[-_MOST_PENDING:], loss.detach().reshape(()).clone()]

    def _unscaled(self, tensor: Tensor) -> tuple[float, Tensor]:
        """Return the scale of a loss and the loss without it; `scaler.scale(loss) / 4` is scaled, too."""
        if self.has_scaler and tensor.grad_fn is not None:
            near: deque[Any] = deque([tensor.grad_fn])
            for _ in range(_NEAR):
                if not near:
                    break
                node = near.popleft()
                if _SCALED in _metadata(node):
                    scale, plain = _metadata(node)[_SCALED]
                    return scale, plain if node is tensor.grad_fn else tensor.detach() / scale
                near.extend(other for other, _ in node.next_functions if other is not None)
        return 1.0, tensor.detach()


def _metadata(node: Any) -> dict[str, Any]:
    return node.metadata  # torch's stubs call it a method


def watched_losses(
    watch: LossWatch,
    is_ours: Callable[[], bool],
    skipped: Callable[[Any], object],
    unscaling: Callable[[Any], object],
    count_steps: Callable[[], int],
    begin: Callable[[Any], object],
    end: Callable[[], object],
    is_pass: Callable[[Any, Any], bool] = lambda loss, inputs: False,
    rest: Callable[[Any], object] = lambda tensors: None,
) -> AbstractContextManager[None]:
    """Observe `torch.autograd.backward` (which `Tensor.backward` calls), `grad` and gradient scalers while open.

    Args:
        is_ours: False in a forked process.
        skipped: called with the optimizer when a scaler skips its step because of infinite gradients.
        unscaling: called with the optimizer before a scaler unscales its gradients.
        count_steps: returns the number of steps so far.
        begin, end: called before every backward pass, with its tensors, and after it.
        is_pass: whether derivatives of a loss by some tensors count as a backward pass.
        rest: called before those that are not followed, with their tensors.
    """
    backward, scale, step = torch.autograd.backward, torch.amp.GradScaler.scale, torch.amp.GradScaler.step
    grad = torch.autograd.grad
    unscale = torch.amp.GradScaler.unscale_

    @functools.wraps(backward)
    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        # Checkpointing runs one backward pass inside another.
        if torch.compiler.is_compiling() or in_backward():
            return backward(tensors, *args, **kwargs)
        if not is_ours():
            rest(tensors)
            return backward(tensors, *args, **kwargs)
        begin(tensors)
        result = backward(tensors, *args, **kwargs)
        end()
        return result

    @functools.wraps(grad)
    def watched_grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        inputs = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)  # it may be a generator
        is_inner = in_backward() or kwargs.get("create_graph") or any(args[2:3])
        if torch.compiler.is_compiling() or not is_ours() or is_inner:
            return grad(outputs, inputs, *args, **kwargs)
        if not is_pass(outputs, inputs):
            watch.see_derived(outputs, inputs)
            return grad(outputs, inputs, *args, **kwargs)
        begin(outputs)
        result = grad(outputs, inputs, *args, **kwargs)
        with shown_gradients(inputs, result):
            end()
        return result

    @functools.wraps(scale)
    def watched_scale(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        is_seen = not torch.compiler.is_compiling() and is_ours() and self.is_enabled()
        if is_seen and not isinstance(outputs, Iterator):
            several = isinstance(outputs, (list, tuple))
            pairs = zip(scaled, outputs, strict=True) if several else [(scaled, outputs)]
            for scaled_loss, plain in pairs:
                watch.remember_scaled(scaled_loss, plain, self.get_scale())
        return scaled

    @functools.wraps(unscale)
    def watched_unscale(self: Any, optimizer: Any) -> Any:
        if not torch.compiler.is_compiling() and is_ours() and self.is_enabled():
            unscaling(optimizer)
        return unscale(self, optimizer)

    @functools.wraps(step)
    def watched_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return step(self, optimizer, *args, **kwargs)
        before = count_steps()
        result = step(self, optimizer, *args, **kwargs)
        if is_ours() and count_steps() == before:
            skipped(optimizer)
        return result

    for ours in (is_ours, rest, count_steps):
        left_alone_by_compiler(ours)
    for watched in (watched_backward, watched_grad, watched_scale, watched_unscale, watched_step):
        left_alone_by_compiler(watched, with_callees=False)
    return replaced(
        (torch.autograd, "backward", watched_backward),
        (torch.autograd, "grad", watched_grad),
        (torch.amp.GradScaler, "scale", watched_scale),
        (torch.amp.GradScaler, "unscale_", watched_unscale),
        (torch.amp.GradScaler, "step", watched_step),
    )
