"""The learning-rate range test: raise the rate every step, record the loss, restore everything."""

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from modelscope_cli.records.naming import counted
from modelscope_cli.records.train import Restored, Suggestion
from modelscope_cli.training.runner import Callback, CancelFit, LabelledBatch, LossFunction, Runner
from modelscope_cli.training.save_restore import PARTS, TrainingState, hashes_of


@dataclass(frozen=True, slots=True)
class Sweep:
    """The schedule of a range test.

    Attributes:
        low, high: first and last learning rate.
        smoothing: weight of the past in the smoothed loss, 0..1.
        diverged: stop once the smoothed loss is this many times its lowest value.
    """

    low: float = 1e-5
    high: float = 10.0
    steps: int = 100
    is_linear: bool = False
    smoothing: float = 0.9
    diverged: float = 4.0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        share = step / max(self.steps - 1, 1)
        if self.is_linear:
            return self.low + (self.high - self.low) * share
        return self.low * (self.high / self.low) ** share


class LrSweep(Callback):
    """Sets the learning rate of every step and ends the training where the loss diverges.

    The smoothed loss is the exponential average, divided by `1 - smoothing^n` for its start at 0 (as in Adam,
    Kingma & Ba 2015).

    Attributes:
        lr, losses, smoothed: of every step.
        stopped: why it ended.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.lr: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.stopped = ""
        self._average = 0.0

    def begin_batch(self, run: Runner) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = self.sweep.rate(run.step)

    def after_loss(self, run: Runner) -> None:
        loss, smoothing = float(run.loss.detach()), self.sweep.smoothing
        self.lr.append(self.sweep.rate(run.step))
        self.losses.append(loss)
        if not math.isfinite(loss):
            self.stopped = f"the loss was not finite at step {run.step}"
            raise CancelFit
        self._average = smoothing * self._average + (1 - smoothing) * loss
        self.smoothed.append(self._average / (1 - smoothing ** len(self.losses)))
        if self.smoothed[-1] > self.sweep.diverged * min(self.smoothed):
            self.stopped = f"diverged: the smoothed loss is {self.sweep.diverged:g} times its lowest value"
            raise CancelFit

    def judged(self) -> tuple[list[float], list[float]]:
        """Return rates and smoothed losses without the first tenth of the sweep and its last five steps.

        As fastai's `lr_find` cuts its curve. A loss of NaN ends the curve; nothing before it is cut.
        """
        is_nan = bool(self.losses) and math.isnan(self.losses[-1])
        curve = slice(self.sweep.steps // 10, len(self.smoothed) if is_nan else max(len(self.losses) - 5, 0))
        return self.lr[curve], self.smoothed[curve]

    def after_batch(self, run: Runner) -> None:
        if run.step >= self.sweep.steps:
            self.stopped = "the end of the range"
            raise CancelFit


@dataclass(frozen=True, slots=True)
class RangeTest:
    """What a range test gave; fields as in `LrfindRecord`."""

    lr: tuple[float, ...]
    loss: tuple[float | None, ...]
    smoothed: tuple[float | None, ...]
    suggestion: Suggestion
    stopped: str
    restored: Restored
    hashes: dict[str, tuple[str, str]]


def find_lr(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[LabelledBatch],
    loss_function: LossFunction,
    sweep: Sweep,
    callbacks: Iterable[Any] = (),
    forward: Callable[[Any], Any] | None = None,
) -> RangeTest:
    """Run the range test (L. N. Smith, "Cyclical Learning Rates", 2017, section 3.3) and restore everything.

    Weights, buffers, gradients, training flags, optimizer and random states are what they were, also after an
    error; `hashes` of both moments show it.
    """
    before = TrainingState(model, optimizer)
    callback = LrSweep(sweep)
    try:
        runner = Runner(model, optimizer, batches, loss_function, [*callbacks, callback], forward)
        runner.fit(sys.maxsize)
    finally:
        before.restore()
    after = hashes_of(model, optimizer)
    n = len(callback.smoothed)
    non_finite = (None,) * (len(callback.losses) - n)
    return RangeTest(
        lr=tuple(callback.lr),
        loss=(*callback.losses[:n], *non_finite),
        smoothed=(*callback.smoothed, *non_finite),
        suggestion=suggest(*callback.judged()),
        stopped=callback.stopped or f"Ctrl-C after {counted(runner.step, 'step')}",
        restored=Restored(*(before.hashes[part] == after[part] for part in PARTS)),
        hashes={part: (before.hashes[part], after[part]) for part in PARTS},
    )


def suggest(lr: Sequence[float], smoothed: Sequence[float]) -> Suggestion:
    """Return the three usual suggestions; all None for fewer than three points, or where the loss never falls.

    Args:
        lr: ascending. smoothed: finite, of the same length.

    The definitions of fastai's `lr_find`, with two exceptions: the steepest fall is before the minimum, and no
    index is below 0.
    """
    if len(smoothed) < 3 or min(smoothed[1:]) >= smoothed[0]:
        return Suggestion(None, None, None)
    low = min(range(len(smoothed)), key=smoothed.__getitem__)
    slopes = [(smoothed[i + 1] - smoothed[i]) / (math.log(lr[i + 1]) - math.log(lr[i])) for i in range(low)]
    steepest = min(range(low), key=slopes.__getitem__)
    return Suggestion(lr[steepest], lr[_valley(smoothed)], lr[low] / 10)


def _valley(losses: Sequence[float]) -> int:
    """Return the index halfway down the longest valley, as fastai's `valley` defines it.

    The valley ends where the longest strictly falling subsequence ends (of several the first to end) and is as
    many steps wide as that subsequence has points, `n`; the index is `n // 3 + n // 6` steps from its start.
    """
    length: list[int] = []
    for i, loss in enumerate(losses):
        length.append(1 + max((length[j] for j in range(i) if losses[j] > loss), default=0))
    n = max(length)
    return max(length.index(n) - n + n // 3 + n // 6, 0)
