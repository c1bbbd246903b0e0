"""`lrfind`: suggest a learning rate by a range test of a copy of the model."""

import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from modelscope_cli.errors import UsageError
from modelscope_cli.models.request import Model, seed_of
from modelscope_cli.records.keywords import ClassifierKeywords, spelled_out
from modelscope_cli.records.naming import counted
from modelscope_cli.records.progress import SILENT, Progress, counting
from modelscope_cli.records.refusals import check_range
from modelscope_cli.records.run import invocation
from modelscope_cli.records.train import LrfindRecord, RangeTest, Suggestion
from modelscope_cli.rules.training.progress import noise_deviation
from modelscope_cli.training.request import check_data, name_model, request_of
from modelscope_cli.training.runner import Callback, LabelledBatch, LossFunction, Runner, StopTraining

_SMOOTHING = 0.9  # weight of the past in the smoothed loss
_DIVERGED = 4.0  # times the lowest smoothed loss
_APART = 2.0  # times the noise, or a third of the fall: 1 of 43 sweeps with labels at random differed by more
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


def beside(test: RangeTest, other: RangeTest) -> RangeTest:
    """Return a test with a fall as noise that labels at random explain, and without a suggestion if they do."""
    curve, others = ([loss for loss in one.smoothed if loss is not None] for one in (test, other))
    down = curve[: curve.index(min(curve)) + 1]
    gap = max(low - loss for loss, low in zip(down, accumulate(others, min), strict=False))
    has_memorised = other.fall > min(other.noise, test.fall / 2)
    least = max(_APART * test.noise, test.fall / 3) if has_memorised else test.fall / 2
    noise = max(test.noise, test.fall - gap + least)
    test = replace(test, shuffled=other.fall)
    return test if test.fall > noise else replace(test, noise=noise, suggestion=Suggestion(None, None, None))


def noise_of(losses: Sequence[float]) -> float:
    """Return the largest fall of the smoothed loss that independent noise explains, at least 1 % of the first loss.

    An exponential average of noise of standard deviation s has one of s sqrt((1 - b) / (1 + b)), and the extremes
    of n normal values are sqrt(2 ln n) of these from their mean. Three times that is exceeded by fewer than 1 % of
    flat curves of 50 steps or more; twice, by 5 %, as s is estimated from the same losses.
    """
    deviation = noise_deviation(losses) * math.sqrt((1 - _SMOOTHING) / (1 + _SMOOTHING))
    noise = 3 * deviation * math.sqrt(2 * math.log(max(len(losses), 1)))
    return max(noise, _LEAST_FALL * abs(losses[0]) if losses else 0.0)


def suggest(lr: Sequence[float], smoothed: Sequence[float]) -> Suggestion:
    """Return the three usual suggestions; all None for fewer than three points, or where the loss never falls.

    Args:
        lr: ascending. smoothed: finite, of the same length.

    The definitions of fastai's `lr_find`, with three exceptions: the steepest fall is before the minimum, no
    index is below 0, and the valley is no more than a tenth of the rate of the minimum.
    """
    if len(smoothed) < 3 or min(smoothed[1:]) >= smoothed[0]:
        return Suggestion(None, None, None)
    low = min(range(len(smoothed)), key=smoothed.__getitem__)
    slopes = [(smoothed[i + 1] - smoothed[i]) / (math.log(lr[i + 1]) - math.log(lr[i])) for i in range(low)]
    steepest = min(range(low), key=slopes.__getitem__)
    return Suggestion(lr[steepest], min(lr[_valley(smoothed)], lr[low] / 10), lr[low] / 10)


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
    steps: int = 100,
    batch: int = 32,
    weights: str = "none",
    progress: Progress | None = None,
    **keywords: Unpack[ClassifierKeywords],
) -> LrfindRecord:
    """Sweep the learning rate while training, and return a suggestion; your module does not change.

    Args:
        model: a name or file as on the command line, an `nn.Module`, or the result of `load`.
        data: a folder with one folder of images a class; a `DataLoader` of `(images, labels)`, or a pair, of which
            the first is used; None for drawn shapes.
        loaders: train on a DataLoader of your own. NAME may also be a function that returns one, or (train,
            validation).
        pictures: how many shapes to draw.
        size: width and height of each image, in pixels.
        low: the first learning rate.
        high: the last learning rate.
        steps: how many steps to take.
        batch: images per step. A loader keeps its own batches.

    Raises:
        UsageError: a keyword, a pattern or a combination that is not valid (exit 2 on the command line).
        CannotRunError: model or data cannot be loaded, or the forward raises an error (exit 4).
    """
    invoked = invocation()
    progress = progress or SILENT
    check_range("steps", steps, least=3)
    _check_sweep(low, high)
    model = name_model(model, weights, keywords)
    request = request_of(keywords, steps=steps, batch=batch, lr=low, seed=seed_of(model, keywords))
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
        batches, labels, ends = source.batches(batch, request.seed), list[Tensor](), [steps]

        def sweep(log: LrSweep, *parts: Callback) -> RangeTest:
            net.load_state_dict(start)
            optimizer, loss = make_optimizer(trainable(net), request), classification_loss(source.n_classes)
            shown, running = counting(progress, "steps", steps), forward_of(net, source, request.seed)
            with shown as advance, running as forward:
                parts = (*parts, to_place(place), On("after_step", lambda run: advance()))
                return find_lr(net, optimizer, batches, loss, log, parts, forward)

        def relabel(run: Runner) -> None:
            rows = run.inputs.cpu().flatten(1).view(torch.uint8).numpy()
            pool = torch.cat(labels)
            run.targets = pool[[zlib.crc32(row) % len(pool) for row in rows]]

        log, other = LrSweep(low, high, steps), LrSweep(low, high, steps)
        see, end = (lambda run: labels.append(run.targets.cpu())), (lambda run: ends.append(run.step))
        test = sweep(log, On("begin_batch", see), On("after_epoch", end))
        new = log.judged()[1][: max(min(ends) - steps // 10, 0)]  # before any image came again
        if test.suggestion.valley is not None and largest_fall(steady(new, test.noise)) <= test.noise:
            test = beside(test, sweep(other, On("begin_batch", relabel)))
        return LrfindRecord(
            run=classifier.run("lrfind", source, request.seed, invoked, progress),
            **vars(test),
            optimizer=request.optimizer,
            data=source.source,
        )


def _check_sweep(low: float, high: float) -> None:
    if not (0 < low < high and math.isfinite(high)):
        raise UsageError(
            f"'--from {low:g} --to {high:g}' is not an increasing range above 0", "--from 1e-5 --to 10"
        )
