"""Train one model once and return its curves."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from modelscope_cli.analysis.predictions.scores import class_scores
from modelscope_cli.analysis.statistics.moments import Moments, Wanted
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.errors import CannotRunError, failed_device, refuse_failed_device
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.hooks.session import Call, ForwardError, HookSession, Observer
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.naming import counted
from modelscope_cli.records.train import Training
from modelscope_cli.records.watch import (
    SOUND,
    CriterionSeries,
    Event,
    LayerSeries,
    ParameterSeries,
    ScalarSeries,
    TrainingFacts,
    WatchedCriterion,
    WatchedLayer,
    WatchedParameter,
)
from modelscope_cli.rules.training import judge_training
from modelscope_cli.rules.training.progress import accuracy_of, proof
from modelscope_cli.training import callbacks as cb
from modelscope_cli.training.classifier import trainable
from modelscope_cli.training.data import DataSource
from modelscope_cli.training.request import TrainRequest
from modelscope_cli.training.runner import INTERRUPTED, Callback, Runner, StopTraining

_MOMENTUM = 0.9


def make_optimizer(parameters: Iterable[nn.Parameter], request: TrainRequest) -> torch.optim.Optimizer:
    """Make the optimizer; momentum is 0.9."""
    if request.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=request.lr, weight_decay=0.0)
    momentum = 0.0 if request.optimizer == "sgd" else _MOMENTUM
    return torch.optim.SGD(
        parameters, lr=request.lr, momentum=momentum, nesterov=request.optimizer == "nesterov"
    )


def make_schedule(optimizer: torch.optim.Optimizer, request: TrainRequest) -> LRScheduler | None:
    """Make the schedule over all steps; None where the learning rate is constant."""
    if request.schedule == "one-cycle":
        return OneCycleLR(optimizer, request.lr, total_steps=request.steps)
    if request.schedule == "cosine":
        return CosineAnnealingLR(optimizer, request.steps)
    return None


Row = tuple[Moments, float | None]  # activations, norm of their gradient


class History(Callback, Observer):
    """Records the innermost layers and the trained parameters every `every` steps, the loss at each.

    The first loss that is not finite ends the training, before it spoils the weights.

    Both an observer of the `HookSession` around the training and a callback of its runner.
    Gradients are read after the optimizer step, so after clipping.

    Args:
        model: class name of the model.
        every: record steps 0, `every`, 2 * `every` ...
    """

    def __init__(self, model: str, every: int) -> None:
        self._model = model
        self.every = every
        self._wanted = Wanted(histogram=False)
        self._channels = ChannelFinder()
        self._is_on = self._is_looking = False  # during the forward pass; during the whole batch
        self._calls: dict[tuple[str, int], Call] = {}
        self._rows: dict[tuple[str, int], dict[int, Row]] = {}  # by step
        self._pending: dict[tuple[str, int], Callable[[], Moments]] = {}
        self._gradients: dict[tuple[str, int], Tensor] = {}
        self._weights: dict[str, Tensor] = {}
        self._updates: dict[str, list[tuple[int, float | None, float, float | None]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._losses: dict[int, float] = {}
        self.predictions: list[cb.Predictions] = []  # of every step
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
        except (TypeError, RuntimeError) as error:
            refuse_failed_device(error)
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
        self._losses[run.step] = loss = float(run.loss.detach())
        predicted = class_scores(run.outputs).detach().argmax(1)
        self.predictions.append(cb.Predictions(tuple(run.targets.tolist()), tuple(predicted.tolist())))
        self._rates[run.step] = float(run.optimizer.param_groups[0]["lr"])
        if not math.isfinite(loss):
            raise StopTraining

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
            WatchedParameter(
                self._model, name, optimizer, self._shapes[name], ParameterSeries(*zip(*rows, strict=True))
            )
            for name, rows in self._updates.items()
        )

    def scalars(self, optimizer: str) -> list[tuple[ScalarSeries]]:
        """Return the loss and the learning rate."""
        both = (self._losses, self._rates)
        return [(ScalarSeries(optimizer, tuple(one), tuple(one.values())),) for one in both]


def _update(parameter: nn.Parameter, before: Tensor) -> tuple[float | None, float, float | None]:
    """Return the norms of gradient and weights before the step, and the relative change of the weights."""
    gradient = None if parameter.grad is None else float(torch.linalg.vector_norm(parameter.grad))
    weight = float(torch.linalg.vector_norm(before))
    change = float(torch.linalg.vector_norm(parameter.detach() - before))
    return gradient, weight, change / weight if weight else None


def _layer_series(rows: dict[int, Row]) -> LayerSeries:
    moments = [m for m, _ in rows.values()]
    dead = tuple(m.alive.count(False) / len(m.alive) if m.alive else None for m in moments)
    return LayerSeries.of(
        tuple(rows), moments, grad_norm=tuple(norm for _, norm in rows.values()), dead_fraction=dead
    )


def train_once(
    model: nn.Module,
    data: DataSource,
    request: TrainRequest,
    place: cb.ModelPlace,
    advance: Callable[[], object] = lambda: None,
) -> Training:
    """Train `model` in place as requested and return the curves; the same seed gives the same bits.

    Args:
        advance: called after every step.
    """
    optimizer = make_optimizer(trainable(model), request)
    schedule = make_schedule(optimizer, request)
    clip, norm = nn.utils.clip_grad_norm_, request.clip_norm
    history = History(type(model).__name__, request.looks_every)
    held_out = cb.HeldOut(data.held_out_batches(), place)
    parts: list[Callback] = [
        cb.to_place(place),
        *([cb.On("begin_step", lambda run: clip(run.model.parameters(), norm))] if norm else []),
        history,
        *([cb.On("after_step", lambda run: schedule.step())] if schedule else []),
        cb.On("after_step", lambda run: advance()),
        held_out,
    ]
    batches = data.batches(request.batch, request.seed)
    criterion = classification_loss(data.n_classes)
    with forward_of(model, data, request.seed, [history]) as forward:
        runner = Runner(model, optimizer, batches, criterion, parts, forward)
        runner.fit(request.steps)
    name = type(optimizer).__name__
    loss, lr = history.scalars(name)
    training = Training(
        # A loader has a size of its own
        settings={**asdict(request), "batch": max(len(one.labels) for one in history.predictions)},
        steps=runner.step,
        layers=history.layers(),
        parameters=history.parameters(name),
        loss=loss,
        lr=lr,
        held_out=tuple(held_out.results),
        held_out_labels=tuple(sorted(Counter(held_out.last.labels).items())),
        events=_events(loss[0], runner.interrupted_at),
    )
    facts = training_facts(loss[0], data.n_classes, history.predictions, held_out)
    judgement = judge_training(training, facts)
    return replace(
        training,
        training_accuracy=next((accuracy_of(one)[0] for one in facts.criteria if one.is_training), None),
        findings=judgement.findings,
        verdict=judgement.verdict,
        reason=(proof(facts) if judgement.verdict == SOUND else None) or judgement.reason,
    )


def _events(loss: ScalarSeries, interrupted_at: int | None) -> tuple[Event, ...]:
    events = []
    if not math.isfinite(loss.value[-1] or 0.0):
        events.append(Event(loss.step[-1], "non-finite-loss", "the loss was NaN or infinite"))
    if interrupted_at is not None:
        message = f"Ctrl-C after {counted(interrupted_at, 'step')}: stopped"
        events.append(Event(interrupted_at, INTERRUPTED, message))
    return tuple(events)


def training_facts(
    loss: ScalarSeries, n_classes: int | None, seen: Sequence[cb.Predictions], validation: cb.HeldOut
) -> TrainingFacts:
    """Return the facts about the loss and the predictions of every step, and about the last validation.

    Args:
        n_classes: None where only the labels tell.
    """

    def criterion(step: Any, value: Any, seen: Sequence[cb.Predictions], **about: Any) -> Any:
        labels = Counter(label for one in seen for label in one.labels)
        shares = [count / labels.total() for count in labels.values()]
        n = len(seen)
        series = CriterionSeries(
            step,
            value,
            rows=tuple(len(one.labels) for one in seen),
            accuracy=tuple(
                None if x is None or math.isnan(x) else one.accuracy
                for one, x in zip(seen, value, strict=True)
            ),
            commonest_label=tuple(_commonest(one.labels) for one in seen),
            commonest_prediction=tuple(_commonest(one.predicted) for one in seen),
            **dict.fromkeys(("is_probability", "is_positive"), (False,) * n),
            target_variance=(None,) * n,
        )
        about |= {**dict.fromkeys(("place", "made_by", "shapes")), "is_summed": False, "series": series}
        entropy = -sum(one * math.log(one) for one in shares)
        return WatchedCriterion("cross_entropy", label_entropy=entropy, commonest_label=max(shares), **about)

    criteria, of_last = [], {*validation.last.labels}
    n_seen = len(of_last.union(*(one.labels for one in seen)))
    if len({label for one in seen for label in one.labels}) > 1:
        criteria.append(criterion(loss.step, loss.value, seen, is_training=True, classes=n_classes or n_seen))
    if len(of_last) > 1:
        last = validation.results[-1]
        shown = (last.step,), (last.loss,), (validation.last,)
        criteria.append(criterion(*shown, is_training=False, classes=n_classes or n_seen))
    return TrainingFacts(criteria=tuple(criteria))


def _commonest(classes: Sequence[int]) -> float:
    return Counter(classes).most_common(1)[0][1] / len(classes)


def classification_loss(n_classes: int | None) -> Callable[[Any, Tensor], Tensor]:
    """Return the cross-entropy loss for the output of a classifier."""

    def loss(output: Any, targets: Tensor) -> Tensor:
        scores = class_scores(output, len(targets))
        if n_classes is not None and scores.shape[1] < n_classes:
            message = f"the model outputs {scores.shape[1]} scores, but the data have {n_classes} classes"
            raise CannotRunError(message, f"give a model that takes num_classes={n_classes}")
        try:
            return F.cross_entropy(scores, targets)
        except (IndexError, RuntimeError, ValueError) as error:
            if failed_device(error) is not None:
                raise
            message = f"the {scores.shape[1]} scores of the model do not fit the targets: {error}"
            raise CannotRunError(
                message, "give targets that are class indices, below the number of scores"
            ) from error

    return loss


@contextmanager
def forward_of(
    model: nn.Module, data: DataSource, seed: int, observers: Sequence[Observer] = ()
) -> Iterator[Callable[[Tensor], Any]]:
    """Yield a function that runs the model under `observers`; if its forward raises, the hint is an option.

    Inside, every random generator that a training may use is seeded; at the end these and the data are restored.
    """
    with (
        data.as_found(),
        seeded(seed),
        kept_random_states(),
        HookSession(model, observers, is_restoring=False, with_gradients=True) as session,
    ):
        torch.manual_seed(seed)

        def forward(inputs: Tensor) -> Any:
            try:
                return session.run((inputs,))
            except ForwardError as error:
                raise CannotRunError(error.message, _hint(error)) from error

        yield forward


def _hint(error: ForwardError) -> str | None:
    if "more than 1 value per channel" in error.message:
        return "--batch 2   batch norm in train mode needs more than one value per channel"
    if re.search(r"to have \d+ channels", error.message):  # no option changes those of images
        return "--loaders FILE.py:NAME   a DataLoader of images with as many channels as the model takes"
    return error.hint
