"""Train one model once and return its curves."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modelscope_cli.analysis.predictions.scores import class_scores
from modelscope_cli.errors import LESS_MEMORY, OUT_OF_MEMORY, CannotRunError, is_out_of_memory
from modelscope_cli.hooks.session import ForwardError, HookSession
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.records.train import Measurement, Training
from modelscope_cli.records.watch import CriterionSeries, Event, ScalarSeries, TrainingFacts, WatchedCriterion
from modelscope_cli.rules.training import judge_training
from modelscope_cli.training import callbacks as cb
from modelscope_cli.training.data import DataSource
from modelscope_cli.training.history import History
from modelscope_cli.training.model import trainable
from modelscope_cli.training.optim import make_optimizer, make_schedule
from modelscope_cli.training.request import Variant
from modelscope_cli.training.runner import Runner


def train_once(
    model: nn.Module,
    data: DataSource,
    variant: Variant,
    place: cb.ModelPlace,
    own_callbacks: Sequence[Any] = (),
    advance: Callable[[], object] = lambda: None,
    checkpoints: cb.Checkpoints | None = None,
) -> Training:
    """Train `model` in place as `variant` requests and return the curves; the same seed gives the same bits.

    Args:
        own_callbacks: those of the user.
        advance: called after every step.
    """
    request = variant.request
    optimizer = make_optimizer(trainable(model), request)
    schedule = make_schedule(optimizer, request)
    history = History(type(model).__name__, request.looks_every, NEAR_ZERO)
    non_finite = cb.StopAtNonFinite()
    held_out = cb.HeldOut(data.held_out_batches(), place)
    stopping = cb.EarlyStopping(held_out, request.patience) if request.patience else None
    parts: list[Any] = [
        cb.ToDevice(place),
        *([cb.Clip(request.clip_norm)] if request.clip_norm else []),
        history,
        non_finite,
        *([cb.Schedule(schedule)] if schedule else []),
        cb.EveryStep(advance),
        *([checkpoints] if checkpoints else []),
        *own_callbacks,
        cb.StepLimit(request.steps),
        held_out,
        *([stopping] if stopping else []),
    ]
    batches = data.batches(request.batch, request.seed)
    with (
        data.as_found(),
        all_seeded(request.seed, place.device),
        HookSession(model, [history], is_restoring=False, with_gradients=True) as session,
    ):
        runner = Runner(
            model,
            optimizer,
            batches,
            classification_loss(request.label_smoothing, data.n_classes),
            parts,
            forward=lambda inputs: run_forward(session, inputs),
        )
        runner.fit(epochs=sys.maxsize)
    name = type(optimizer).__name__
    training = Training(
        name=variant.name,
        settings=asdict(request),
        steps=runner.step,
        layers=history.layers(),
        parameters=history.parameters(name),
        loss=history.loss(name),
        lr=history.lr(name),
        held_out=tuple(Measurement(step, _finite(loss), share) for step, loss, share in held_out.results),
        events=_events(non_finite, stopping),
    )
    facts = what_it_is_given(training.loss[0], data.n_classes, request.batch)
    judged = judge_training(training, facts)
    return replace(training, findings=judged.findings, verdict=judged.verdict, reason=judged.reason)


def _events(non_finite: cb.StopAtNonFinite, stopping: cb.EarlyStopping | None) -> tuple[Event, ...]:
    """Return why a training stopped early."""
    events = []
    if non_finite.at is not None:
        events.append(Event(non_finite.at, "non-finite-loss", "the loss was NaN or infinite: stopped"))
    if stopping is not None and stopping.at is not None:
        message = f"the validation loss did not fall for {stopping.patience} epochs: stopped"
        events.append(Event(stopping.at, "early-stop", message))
    return tuple(events)


def what_it_is_given(loss: ScalarSeries, n_classes: int | None, batch: int) -> TrainingFacts:
    """Return what the rules need to know of the loss: the criterion and its number of classes.

    The labels are assumed to be balanced, so guessing costs ln C.
    """
    if n_classes is None or n_classes < 2:
        return TrainingFacts()
    unknown: tuple[None, ...] = (None,) * len(loss.step)
    series = CriterionSeries(
        step=loss.step,
        value=loss.value,
        rows=(batch,) * len(loss.step),
        accuracy=unknown,
        commonest_label=unknown,
        commonest_prediction=unknown,
        target_variance=unknown,
        is_probability=(False,) * len(loss.step),
        is_positive=(False,) * len(loss.step),
    )
    criterion = WatchedCriterion(
        name="cross_entropy",
        place=None,
        is_training=True,
        classes=n_classes,
        made_by=None,
        shapes=None,
        is_summed=False,
        label_entropy=math.log(n_classes),
        commonest_label=None,
        series=series,
    )
    return TrainingFacts(criteria=(criterion,))


def classification_loss(label_smoothing: float, n_classes: int | None) -> Callable[[Any, Tensor], Tensor]:
    """Return the cross-entropy loss for the output of a classifier."""

    def loss(output: Any, targets: Tensor) -> Tensor:
        scores = class_scores(output, len(targets))
        if n_classes is not None and scores.shape[1] < n_classes:
            message = f"the model outputs {scores.shape[1]} scores, the data have {n_classes} classes"
            raise CannotRunError(message, f"give a model that takes num_classes={n_classes}")
        try:
            return F.cross_entropy(scores, targets, label_smoothing=label_smoothing)
        except (IndexError, RuntimeError, ValueError) as error:
            if is_out_of_memory(error):
                raise
            message = f"the {scores.shape[1]} scores of the model do not fit the targets: {error}"
            raise CannotRunError(
                message, "give targets that are class indices, below the number of scores"
            ) from error

    return loss


def run_forward(session: HookSession, inputs: Tensor) -> Any:
    """Run the model; if its forward raises, hint at the training option that would help."""
    try:
        return session.run((inputs,))
    except ForwardError as error:
        hint = "--size 224   the size most models are made for"
        if "more than 1 value per channel" in error.message:
            why = "batch norm in train mode needs more than one value per channel"
            hint = f"--batch 2, or --norm-layer group   {why}"
        elif OUT_OF_MEMORY in error.message:
            hint = LESS_MEMORY
        raise CannotRunError(error.message, hint) from error


@contextmanager
def all_seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed every generator that a training may draw from while open; then restore them."""
    devices = [device] if device.type not in ("cpu", "meta") else []
    with seeded(seed), torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed)
        yield


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
