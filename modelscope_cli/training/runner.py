"""A short training loop whose callbacks may change or cancel each stage."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.losses import NO_GRADIENT
from modelscope_cli.errors import CannotRunError
from modelscope_cli.interrupts import deferred

INTERRUPTED = "interrupted"  # kind of event

LabelledBatch = tuple[Any, Any]  # inputs, targets
LossFunction = Callable[[Any, Any], Tensor]


class CancelBatch(Exception):  # noqa: N818 - a request of a callback, not an error
    """Raised by a callback: go on with the next batch."""


class CancelEpoch(Exception):  # noqa: N818
    """Raised by a callback: go on with the next epoch."""


class CancelFit(Exception):  # noqa: N818
    """Raised by a callback: the training is over."""


class Callback:
    """Base class of callbacks; every method gets the `Runner` and may change its attributes.

    A cancelled batch, epoch or fit still gets its `after_...`; nothing is called after an error.
    """

    def begin_fit(self, run: "Runner") -> None:
        """Before the first batch."""

    def begin_epoch(self, run: "Runner") -> None:
        """Before an epoch."""

    def begin_batch(self, run: "Runner") -> None:
        """`run.inputs` and `run.targets` are set."""

    def begin_loss(self, run: "Runner") -> None:
        """The forward pass is done: `run.outputs` is set."""

    def after_loss(self, run: "Runner") -> None:
        """`run.loss` is set, with its graph."""

    def begin_backward(self, run: "Runner") -> None:
        """Before the backward pass."""

    def after_backward(self, run: "Runner") -> None:
        """The gradients are computed."""

    def begin_step(self, run: "Runner") -> None:
        """Before the optimizer changes the weights: the last chance to change a gradient."""

    def after_step(self, run: "Runner") -> None:
        """After the optimizer step. `run.step` is still the number of this step."""

    def after_batch(self, run: "Runner") -> None:
        """After a batch, also a cancelled one."""

    def after_epoch(self, run: "Runner") -> None:
        """After an epoch, also a cancelled one."""

    def after_fit(self, run: "Runner") -> None:
        """At the end, also of a cancelled training."""


class Runner:
    """A training loop with its state, public for callbacks.

    Args:
        model, optimizer, batches, loss_function: `loss_function(outputs, targets)` gives a scalar.
        callbacks: called in this order.
        forward: runs the model; `model` by default.

    Attributes:
        epoch, step: counted from 0; a step is one update of the weights, so cancelled batches do not count.
        inputs, targets, outputs, loss: of the current batch.
        interrupted_at: the step after which Ctrl-C ended the training; None without.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[LabelledBatch],
        loss_function: LossFunction,
        callbacks: Sequence[Any] = (),
        forward: Callable[[Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.batches = batches
        self.loss_function = loss_function
        self.callbacks = list(callbacks)
        self.forward = forward or model
        self.epoch = self.step = 0
        self.inputs: Any = None
        self.targets: Any = None
        self.outputs: Any = None
        self.loss = torch.tensor(0.0)
        self.interrupted_at: int | None = None

    def fit(self, epochs: int) -> None:
        """Train for `epochs` epochs, in train mode."""
        with deferred() as self._is_interrupted:
            try:
                self._tell("begin_fit")
                for self.epoch in range(epochs):
                    self._run_epoch()
            except CancelFit:
                pass
        self._tell("after_fit")

    def _run_epoch(self) -> None:
        try:
            self._tell("begin_epoch")
            self.model.train()
            for batch in self.batches:
                self.inputs, self.targets = batch
                self._run_batch()
                if self._is_interrupted():
                    self.interrupted_at = self.step
                    raise CancelFit
        except CancelEpoch:
            pass
        self._tell("after_epoch")

    def _run_batch(self) -> None:
        try:
            self.optimizer.zero_grad()
            self._tell("begin_batch")
            self.outputs = self.forward(self.inputs)
            self._tell("begin_loss")
            self.loss = self.loss_function(self.outputs, self.targets)
            self._tell("after_loss")
            if not self.loss.requires_grad:
                raise CannotRunError(NO_GRADIENT, "modelscope stats ...   needs no gradients")
            self._tell("begin_backward")
            self.loss.backward()
            self._tell("after_backward")
            self._tell("begin_step")
            self.optimizer.step()
            self._tell("after_step")
            self.step += 1
        except CancelBatch:
            pass
        self._tell("after_batch")

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self)
