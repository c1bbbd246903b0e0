"""`lrfind`: suggest a learning rate by a range test of a copy of the model."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, Unpack

import torch
from torch import nn

from modelscope_cli.errors import UsageError
from modelscope_cli.models.request import Model, seed_of
from modelscope_cli.records.keywords import ClassifierKeywords, spelled_out
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import SILENT, Progress, counting
from modelscope_cli.records.refusals import check_range
from modelscope_cli.records.run import invocation
from modelscope_cli.records.train import ZERO_GRADIENT, LrfindRecord, RangeTest, Suggestion
from modelscope_cli.rules.training.progress import noise_deviation
from modelscope_cli.training.request import check_data, name_model, request_of
from modelscope_cli.training.runner import Callback, LabelledBatch, LossFunction, Runner, StopTraining

_SMOOTHING = 0.9  # weight of the past in the smoothed loss
_DIVERGED = 4.0  # times the lowest smoothed loss
_STEPS, _MORE_STEPS = 100, 300  # by default, and where those cannot tell
_NO_GRADIENT = 1e-9  # the largest norm that moves no weight, at any rate
_GRADIENTS = 10  # steps without a larger one that end a sweep
_LEAST_FALL = 0.01  # of the first loss: a net without gradients can be steadier than its noise


class LrSweep(Callback):
    """Sets the learning rate of every step and ends the training where the loss diverges.

    The smoothed loss is the exponential average, divided by `1 - smoothing^n` for its start at 0 (as in Adam,
    Kingma & Ba 2015).

    Args:
        low, high: the first and the last learning rate.
    """

    def __init__(self, low: float = 1e-5, high: float = 10.0, steps: int = 100) -> None:
        self.low, self.high, self.steps = low, high, steps
        # lr, losses, smoothed: of every step
        self.lr: list[float] = []
        self.losses: list[float] = []
        self.smoothed: list[float] = []
        self.stopped = "the end of the range"  # why it ended
        self._average = 0.0
        self._has_gradient = False

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        return self.low * (self.high / self.low) ** (step / max(self.steps - 1, 1))

    def begin_batch(self, run: Runner) -> None:
        for group in run.optimizer.param_groups:
            group["lr"] = self.rate(run.step)

    def after_loss(self, run: Runner) -> None:
        loss = float(run.loss.detach())
        self.lr.append(self.rate(run.step))
        self.losses.append(loss)
        if not math.isfinite(loss):
            self.stopped = f"the loss was not finite at step {run.step}"
            raise StopTraining
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
        self.smoothed.append(self._average / (1 - _SMOOTHING ** len(self.losses)))
        if self.smoothed[-1] > _DIVERGED * min(self.smoothed):
            self.stopped = f"diverged: the smoothed loss is {_DIVERGED:g} times its lowest value"
            raise StopTraining

    def begin_step(self, run: Runner) -> None:
        if self._has_gradient:
            return
        norms = [torch.linalg.vector_norm(p.grad) for p in run.model.parameters() if p.grad is not None]
        self._has_gradient = not (norms and float(torch.stack(norms).max()) <= _NO_GRADIENT)
        if not self._has_gradient and run.step + 1 >= min(_GRADIENTS, self.steps):
            self.stopped = ZERO_GRADIENT
            raise StopTraining

    def judged(self) -> tuple[list[float], list[float]]:
        """Return rates and smoothed losses without the first tenth of the sweep and its last five steps.

        As fastai's `lr_find` cuts its curve. A loss of NaN ends the curve; nothing before it is cut.
        """
        is_nan = bool(self.losses) and math.isnan(self.losses[-1])
        curve = slice(self.steps // 10, len(self.smoothed) if is_nan else max(len(self.losses) - 5, 0))
        return self.lr[curve], self.smoothed[curve]


def find_lr(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[LabelledBatch],
    loss_function: LossFunction,
    sweep: LrSweep,
    callbacks: Iterable[Callback] = (),
    forward: Callable[[Any], Any] | None = None,
) -> RangeTest:
    """Run the range test (L. N. Smith, "Cyclical Learning Rates", 2017, section 3.3), which changes the model."""
    runner = Runner(model, optimizer, batches, loss_function, [*callbacks, sweep], forward)
    runner.fit(sweep.steps)
    if runner.interrupted_at is not None:
        sweep.stopped = f"Ctrl-C after {counted(runner.step, 'step')}"
    n = len(sweep.smoothed)
    rates, whole = sweep.judged()
    noise = noise_of(sweep.losses[:n])
    judged = steady(whole, noise)
    fall = largest_fall(judged)
    non_finite = (None,) * (len(sweep.losses) - n)
    return RangeTest(
        lr=tuple(sweep.lr),
        loss=(*sweep.losses[:n], *non_finite),
        smoothed=(*sweep.smoothed, *non_finite),
        suggestion=suggest(rates[: len(judged)], judged) if fall > noise else Suggestion(None, None, None),
        stopped=sweep.stopped,
        fall=fall,
        noise=noise,
    )


def steady(smoothed: Sequence[float], noise: float) -> Sequence[float]:
    """Return a curve up to where it rises by more than noise, above its start: what follows is no descent."""
    for n, (value, low) in enumerate(zip(smoothed, accumulate(smoothed, min), strict=True)):
        if value - low > max(noise, smoothed[0] - low):
            return smoothed[:n]
    return smoothed


def largest_fall(values: Sequence[float]) -> float:
    """Return how far a curve falls below its first value; 0 if it only rises."""
    return max(values[0] - min(values), 0.0) if values else 0.0


def noise_of(losses: Sequence[float]) -> float:
    """Return the largest fall of the smoothed loss that independent noise explains, at least 1 % of the first loss.

    An exponential average of noise of standard deviation s has one of s sqrt((1 - b) / (1 + b)), and the extremes
    of n normal values are sqrt(2 ln n) of these from their mean. Three times that is exceeded by fewer than 1 % of
    flat curves of 50 steps or more; twice, by 5 %, as s is estimated from the same losses. A loss that has
    fallen to nearly 0 has no noise left, so s is at least that of the first third.
    """
    spread = max(noise_deviation(losses), noise_deviation(losses[: len(losses) // 3]))
    deviation = spread * math.sqrt((1 - _SMOOTHING) / (1 + _SMOOTHING))
    noise = 3 * deviation * math.sqrt(2 * math.log(max(len(losses), 1)))
    return max(noise, _LEAST_FALL * abs(losses[0]) if losses else 0.0)


def suggest(lr: Sequence[float], smoothed: Sequence[float]) -> Suggestion:
    """Return the three usual suggestions; all None for fewer than three points, or where the loss never falls.

    Args:
        lr: ascending. smoothed: finite, of the same length.

    `steepest` and `minimum` are those of fastai's `lr_find`, but the steepest fall is before the minimum. L. N.
    Smith (2017, section 3.3) takes rates between where the loss begins to fall and where it no longer does;
    `valley` is where half of the fall is done, at most a third of where three quarters are: a steep fall ends near
    the rates that diverge. fastai's own `valley`, halfway through the longest falling subsequence, jumps between
    two of nearly equal length, and a bound by the minimum between two that are nearly as low.
    """
    if len(smoothed) < 3 or min(smoothed[1:]) >= smoothed[0]:
        return Suggestion(None, None, None)
    low = min(range(len(smoothed)), key=smoothed.__getitem__)
    slopes = [(smoothed[i + 1] - smoothed[i]) / (math.log(lr[i + 1]) - math.log(lr[i])) for i in range(low)]
    steepest = min(range(low), key=slopes.__getitem__)

    def fallen(share: float) -> float:
        """Return the geometric mean of the first and the last rate at which the loss has fallen by a share."""
        level = smoothed[0] - share * (smoothed[0] - smoothed[low])
        first = next(rate for rate, loss in zip(lr, smoothed, strict=True) if loss <= level)
        last = max(rate for rate, loss in zip(lr[:low], smoothed, strict=False) if loss >= level)
        return math.sqrt(first * last)

    return Suggestion(lr[steepest], min(fallen(1 / 2), fallen(3 / 4) / 3), lr[low] / 10)


@spelled_out
def lrfind(
    model: "Model" = "resnet18",
    data: Any = None,
    *,
    loaders: str | None = None,
    pictures: int = 2000,
    size: int = 64,
    low: float = 1e-5,
    high: float = 10.0,
    steps: int | None = None,
    batch: int = 32,
    weights: str = "none",
    progress: Progress | None = None,
    **keywords: Unpack[ClassifierKeywords],
) -> LrfindRecord:
    """Sweep the learning rate while training, and return a suggestion; your module does not change.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        data: a folder with one folder of images per class; a `DataLoader` of `(images, labels)`, or a pair, whose
            first is used; None for drawn shapes.
        loaders: train on a DataLoader of your own. NAME may also be a function that returns one, or (train,
            validation).
        pictures: how many shapes to draw.
        size: width and height of each image, in pixels.
        low: the first learning rate.
        high: the last learning rate.
        steps: how many steps to take; None for 100, or 300 if those are too few.
        batch: images per step. A loader keeps its own batches.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: model or data cannot be loaded, or the forward raises an error (exit 4).
    """
    invoked = invocation()
    progress = progress or SILENT
    n_steps = _STEPS if steps is None else steps
    check_range("steps", n_steps, least=3)
    if not (0 < low < high and math.isfinite(high)):
        message = f"'--from {low:g} --to {high:g}' is not an increasing range above 0"
        raise UsageError(message, "--from 1e-5 --to 10")
    model = name_model(model, weights, keywords)
    request = request_of(keywords, steps=n_steps, batch=batch, lr=low, seed=seed_of(model, keywords))
    check_data(data, loaders, pictures, size)

    from modelscope_cli.hooks.random_states import kept_random_states
    from modelscope_cli.training.callbacks import On, to_place
    from modelscope_cli.training.classifier import open_classifier, trainable
    from modelscope_cli.training.data import open_data
    from modelscope_cli.training.fit import classification_loss, forward_of, make_optimizer

    with kept_random_states():
        source = open_data(data, loaders, pictures, size, request.seed)
        classifier = open_classifier(model, weights, keywords, source, request, progress)
        net, place = classifier.loaded.module, classifier.place
        start = {name: value.clone() for name, value in net.state_dict().items()}
        batches = source.batches(batch, request.seed)

        def sweep(n_steps: int) -> RangeTest:
            net.load_state_dict(start)
            optimizer, loss = make_optimizer(trainable(net), request), classification_loss(source.n_classes)
            shown, running = counting(progress, "steps", n_steps), forward_of(net, source, request.seed)
            with shown as advance, running as forward:
                parts = to_place(place), On("after_step", lambda run: advance())
                return find_lr(net, optimizer, batches, loss, LrSweep(low, high, n_steps), parts, forward)

        test = sweep(n_steps)
        if steps is None and test.suggestion.valley is None and test.stopped != ZERO_GRADIENT:
            progress.note(f"{_STEPS} steps are too few; using {_MORE_STEPS}")
            test = sweep(_MORE_STEPS)
        return LrfindRecord(
            run=classifier.run("lrfind", source, request.seed, invoked, progress),
            **vars(test),
            optimizer=request.optimizer,
            data=source.source,
        )
