"""What a trial measures in each step: the loss, the cost and the accuracy of the predictions."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from modelscope_cli.watching.criteria import BINARY, CLASSES, NUMBERS
from modelscope_cli.watching.error_isolation import around_steps, replaced
from modelscope_cli.watching.losses import LossWatch, watched_losses
from modelscope_cli.watching.trials.criteria import CriterionCall, wrapped_criteria

STEP, NOTE = "step", "note"
_nll_loss = functional.nll_loss  # before it is replaced
_FIRST_FLUSHED, _FLUSHED = 4, 16  # steps: each of the first, then every so many


class Results:
    """The file into which a trial writes: a JSON document a line, complete up to the last even if it is killed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        self._lines: list[str] = []
        self._n = 0

    def __call__(self, kind: str, **fields: Any) -> None:
        if os.getpid() != self._process:
            return  # a worker of the script
        self._lines.append(json.dumps({"kind": kind, **fields}))
        self._n += 1
        if kind != STEP or self._n <= _FIRST_FLUSHED or len(self._lines) >= _FLUSHED:
            self.flush()

    def flush(self) -> None:
        if self._lines and os.getpid() == self._process:
            os.write(self._descriptor, ("\n".join(self._lines) + "\n").encode())
            self._lines = []


@dataclass(slots=True)
class _Predictions:
    """Sums over the criteria of one step; they stay on the device until it ends."""

    costs: list[Tensor] = field(default_factory=list)
    right: list[Tensor] = field(default_factory=list)
    rows: int = 0


class Meter:
    """Measures each step of a training, and ends it after enough of them.

    A step is one of an optimizer of torch; before the first of these, every backward pass counts as one.

    Args:
        stop: called after `most` steps; must not return.
    """

    def __init__(self, write: Callable[..., None], most: int, stop: Callable[[], None]) -> None:
        self._write, self._most, self._stop = write, most, stop
        self.losses = LossWatch()
        self.n_steps = self._n_counted = 0
        self._has_stepped = False
        self._is_open = False  # whether a loss waits for its step
        self._depth = 0
        self._now = _Predictions()
        self._is_left_out = False  # the step does not count

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Measure while open."""
        with ExitStack() as stack:
            stack.enter_context(around_steps(self._before_step, self._after_step))
            stack.enter_context(
                watched_losses(
                    self.losses,
                    lambda: True,
                    lambda _: self._end_step(),  # skipped by a scaler
                    lambda _: None,
                    lambda: self._n_counted,
                    begin=self._see,
                    end=lambda: None,
                )
            )
            stack.enter_context(replaced(*wrapped_criteria(self._measured)))
            yield

    def leave_out(self) -> None:
        """Do not count the running step."""
        self._is_left_out = True

    def _see(self, tensors: Any) -> None:
        if self._is_open and not self._has_stepped:
            self._end_step()  # the script updates the weights by itself
        self.losses.see(tensors)
        self._is_open = True

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._has_stepped = True
        self._depth += 1
        if self._depth == 1:
            self.losses.begin_step()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._depth = max(self._depth - 1, 0)
        if not self._depth:
            self.losses.end_step()
            self._n_counted += 1
            self._end_step()

    def _end_step(self) -> None:
        loss, self._is_open = self.losses.take()(), False
        now, self._now = self._now, _Predictions()
        is_left_out, self._is_left_out = self._is_left_out, False
        if not is_left_out:
            self._write(
                STEP,
                step=self.n_steps,
                loss=loss,
                cost=float(torch.stack(now.costs).mean()) if now.costs else None,
                right=float(torch.stack(now.right).sum()) / now.rows if now.rows else None,
            )
        self.n_steps += 1
        if self.n_steps >= self._most:
            self._stop()

    def _measured(self, criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        value = original(*criterion.args, **criterion.kwargs)
        if isinstance(value, Tensor) and value.requires_grad and isinstance(criterion.x, Tensor):
            with torch.no_grad():
                self._measure(criterion, value)
        return value

    def _measure(self, criterion: CriterionCall, value: Tensor) -> None:
        """Add the cost of the predictions, whatever the criterion was given them as, and how many are right."""
        x, target = criterion.x.detach(), criterion.target
        if not isinstance(target, Tensor):
            return
        if criterion.kind == CLASSES and x.ndim > 1:
            log_p = criterion.log_probabilities(x)
            if target.is_floating_point():  # a probability for each class
                self._now.costs.append(-(target * log_p).sum(1).mean())
                target, ignored = target.argmax(1), -1
            else:
                ignored = criterion.options.get("ignore_index", -100)
                self._now.costs.append(_nll_loss(log_p, target, ignore_index=ignored))
            is_row = target != ignored
            self._now.right.append(((log_p.argmax(1) == target) & is_row).sum().double())
            self._now.rows += int(is_row.sum())
        elif criterion.kind == BINARY and x.shape == target.shape:
            logits = criterion.logits(x)
            costs = functional.softplus(logits) - target * logits
            self._now.costs.append(costs.mean())
            self._now.right.append(((logits > 0) == (target > 0.5)).sum().double())
            self._now.rows += target.numel()
        elif criterion.kind == NUMBERS:
            self._now.costs.append(value.detach().float().mean())
