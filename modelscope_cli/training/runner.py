"""A short training loop that tells callbacks of each stage."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.losses import NO_GRADIENT
from modelscope_cli.errors import CannotRunError
from modelscope_cli.interrupts import deferred

INTERRUPTED = "interrupted"  # kind of event

LabelledBatch = tuple[Any, Any]  # inputs, targets
LossFunction = Callable[[Any, Any], Tensor]


class StopTraining(Exception):  # noqa: N818 - a request of a callback, not an error
    """Raised by a callback: the training is over."""


class Callback:
    """Base class of callbacks: a method with the name of an event gets the `Runner`; none after an error.

    begin_batch (`run.inputs` and `run.targets` may be replaced), after_loss (with its graph), begin_step (the last
    chance to change a gradient), after_step (`run.step` is still the number of this step), after_epoch (of one that
    is not the last), after_fit (also of a training that a callback or Ctrl-C stopped).
    """


class Runner:
    """A training loop with its state.

    Args:
        model, optimizer, batches, loss_function: `loss_function(outputs, targets)` gives a scalar.
        callbacks: called in this order.
        forward: runs the model; `model` by default.

    Attributes:
        step: counted from 0.
        inputs, targets, outputs, loss: of the current batch.
        interrupted_at: the step after which Ctrl-C ended the training; None without.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        batches: Iterable[LabelledBatch],
        loss_function: LossFunction,
        callbacks: Sequence[Callback] = (),
        forward: Callable[[Any], Any] | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.batches = batches
        self.loss_function = loss_function
        self.callbacks = list(callbacks)
        self.forward = forward or model
        self.step = 0
        self.inputs: Any = None
        self.targets: Any = None
        self.outputs: Any = None
        self.loss = torch.tensor(0.0)
        self.interrupted_at: int | None = None

    def fit(self, steps: int) -> None:
        """Take `steps` optimizer steps in train mode; fewer where a callback or Ctrl-C stops the training."""
        with deferred() as is_interrupted, suppress(StopTraining):
            while self.step < steps:
                self.model.train()
                for batch in self.batches:
                    self.inputs, self.targets = batch
                    self._run_batch()
                    if self.step == steps:
                        break
                    if is_interrupted():
                        self.interrupted_at = self.step
                        raise StopTraining
                else:
                    self._tell("after_epoch")
        self._tell("after_fit")

    def _run_batch(self) -> None:
        self.optimizer.zero_grad()
        self._tell("begin_batch")
        self.outputs = self.forward(self.inputs)
        self.loss = self.loss_function(self.outputs, self.targets)
        self._tell("after_loss")
        if not self.loss.requires_grad:
            raise CannotRunError(NO_GRADIENT, "modelscope stats ...   needs no gradients")
        self.loss.backward()
        self._tell("begin_step")
        self.optimizer.step()
        self._tell("after_step")
        self.step += 1

    def _tell(self, event: str) -> None:
        for callback in self.callbacks:
            if call := getattr(callback, event, None):
                call(self)
