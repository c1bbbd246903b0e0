"""See the loss: the scalar that `backward` is called on, and what a gradient scaler made of it."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class LossWatch:
    """Adds up the losses between two steps: accumulated gradients are those of their sum."""

    def __init__(self) -> None:
        self.n_backward = 0
        self.scale = 1.0  # of the backward pass that runs now, by a gradient scaler
        self._pending: list[Tensor] = []
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None

    def take(self) -> float | None:
        """Return the loss since the last step, None where none was seen, and begin anew."""
        losses, self._pending = self._pending, []
        return sum(loss.item() for loss in losses) if losses else None

    def remember_scaled(self, scaled: Any, plain: Any, scale: float) -> None:
        """Note that `scaled` is `scale` times the loss `plain`."""
        if isinstance(scaled, Tensor) and isinstance(plain, Tensor):
            self._scaled = weakref.ref(scaled), plain.detach()
            self.scale = scale

    def see(self, tensors: Any) -> None:
        """Take in what `backward` is called on."""
        self.n_backward += 1
        for tensor in (tensors,) if isinstance(tensors, Tensor) else tuple(tensors):
            if not isinstance(tensor, Tensor) or tensor.numel() != 1:
                continue
            is_scaled = self._scaled is not None and self._scaled[0]() is tensor
            loss = self._scaled[1] if is_scaled and self._scaled else tensor.detach()
            self.scale = self.scale if is_scaled else 1.0
            # A copy: scripts go on to divide and add to what they hold.
            self._pending.append(loss.reshape(()).clone())


@contextmanager
def watched_losses(
    watch: LossWatch,
    is_ours: Callable[[], bool],
    skipped: Callable[[], object],
    count_steps: Callable[[], int],
) -> Iterator[None]:
    """Look on while `torch.autograd.backward` (which `Tensor.backward` calls) and gradient scalers are used.

    Args:
        is_ours: False in a process that was forked off.
        skipped: called when a scaler left out a step because of infinite gradients.
        count_steps: how many steps there were so far.
    """
    backward, scale, step = torch.autograd.backward, torch.amp.GradScaler.scale, torch.amp.GradScaler.step

    @functools.wraps(backward)
    def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if is_ours():
            watch.see(tensors)
        return backward(tensors, *args, **kwargs)

    @functools.wraps(scale)
    def watched_scale(self: Any, outputs: Any) -> Any:
        scaled = scale(self, outputs)
        if is_ours() and self.is_enabled():
            watch.remember_scaled(scaled, outputs, self.get_scale())
        return scaled

    @functools.wraps(step)
    def watched_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = count_steps()
        result = step(self, optimizer, *args, **kwargs)
        if is_ours() and count_steps() == before:
            skipped()
        return result

    patches: list[tuple[Any, str, Any, Any]] = [
        (torch.autograd, "backward", backward, watched_backward),
        (torch.amp.GradScaler, "scale", scale, watched_scale),
        (torch.amp.GradScaler, "step", step, watched_step),
    ]
    for owner, name, _, watched in patches:
        setattr(owner, name, watched)
    try:
        yield
    finally:
        for owner, name, original, watched in patches:
            if getattr(owner, name) is watched:
                setattr(owner, name, original)
