"""Train one model once and return its curves."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, OneCycleLR

from modelscope_cli.analysis.predictions.scores import class_scores
from modelscope_cli.errors import CannotRunError, failed_device
from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.hooks.session import ForwardError, HookSession
from modelscope_cli.models.architecture import seeded
from modelscope_cli.records.naming import counted
from modelscope_cli.records.train import Training
from modelscope_cli.records.watch import SOUND, CriterionSeries, Event, WatchedCriterion
from modelscope_cli.rules.training import judge_training
from modelscope_cli.rules.training.progress import accuracy_of, proof
from modelscope_cli.training import callbacks as cb
from modelscope_cli.training.classifier import trainable
from modelscope_cli.training.data import DataSource
from modelscope_cli.training.request import TrainRequest
from modelscope_cli.training.runner import INTERRUPTED, Callback, Runner, StopTraining
from modelscope_cli.watching.error_isolation import apart
from modelscope_cli.watching.log import Log
from modelscope_cli.watching.rank_log import RankLog
from modelscope_cli.watching.read_series import merge_ranks
from modelscope_cli.watching.request import WatchRequest
from modelscope_cli.watching.run_script import without_compile_warning
from modelscope_cli.watching.watcher import Watcher

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
    held_out = cb.HeldOut(data.held_out_batches(), place)
    last = LastFinite()
    sizes = Counter[int]()  # of the batches: a loader has one of its own
    parts: list[Callback] = [
        cb.to_place(place),
        *([cb.On("begin_step", lambda run: clip(run.model.parameters(), norm))] if norm else []),
        cb.On("begin_batch", lambda run: sizes.update((len(run.targets),))),
        last,
        *([cb.On("after_step", lambda run: schedule.step())] if schedule else []),
        cb.On("after_step", lambda run: advance()),
        held_out,
    ]
    batches = data.batches(request.batch, request.seed)
    memory = RankLog()
    watcher = _watcher(model, optimizer, request, memory)
    hooks, running = watcher.recorder.installed(), forward_of(model, data, request.seed)
    with apart(watcher.recorder.guard), without_compile_warning(), running as forward, hooks:
        runner = Runner(model, optimizer, batches, classification_loss(data.n_classes), parts, forward)
        runner.fit(request.steps)
    memory.end = watcher.end(0, 0.0)
    series = merge_ranks([memory])
    events = [one for one in series.events if one.kind == "broken"]
    if last.is_over:
        events.append(Event(runner.step, "non-finite-loss", "the loss was NaN or infinite"))
    if (step := runner.interrupted_at) is not None:
        events.append(Event(step, INTERRUPTED, f"Ctrl-C after {counted(step, 'step')}: stopped"))
    # Time depends on the machine. The validation images are the same each time, so only the last accuracy counts.
    criteria = tuple(one if one.is_training else _last(one) for one in series.facts.criteria)
    facts = replace(series.facts, criteria=criteria, time=None)
    training = Training(
        settings={**asdict(request), "batch": max(sizes)},
        steps=runner.step,
        layers=tuple(replace(row, series=replace(row.series, histogram=None)) for row in series.layers),
        parameters=tuple(row for row in series.parameters if row.optimizer),
        loss=series.loss,
        lr=series.lr,
        held_out=tuple(held_out.results),
        held_out_labels=tuple(sorted(Counter(held_out.labels).items())),
        events=tuple(events),
        births=series.births,
        training_accuracy=next((accuracy_of(one)[0] for one in facts.criteria if one.is_training), None),
    )
    judgement = judge_training(series, facts)
    reason = (proof(facts) if judgement.verdict == SOUND else None) or judgement.reason
    return replace(training, findings=judgement.findings, verdict=judgement.verdict, reason=reason)


def _watcher(
    model: nn.Module, optimizer: torch.optim.Optimizer, request: TrainRequest, memory: RankLog
) -> Watcher:
    """Return a watcher that writes to `memory`: of the same steps on every machine, as its clock stands still."""
    watcher = Watcher(
        Log(None, memory.take),
        WatchRequest(every=request.every),
        memory,
        models=[model],
        optimizers=[optimizer],
        clock=lambda: 0.0,
    )
    watcher.recorder.stretches.is_barred = True
    watcher.recorder.budget.ends_at = request.steps
    return watcher


def _last(one: WatchedCriterion) -> WatchedCriterion:
    """Return a criterion with the last entry of each series."""
    ends = {field.name: getattr(one.series, field.name)[-1:] for field in fields(one.series)}
    return replace(one, series=CriterionSeries(**ends))


class LastFinite(Callback):
    """Ends the training after the first loss that is not finite, with the weights before its step."""

    def __init__(self) -> None:
        self._weights: dict[str, Tensor] = {}
        self.is_over = False

    def after_loss(self, run: Runner) -> None:
        if not math.isfinite(float(run.loss.detach())):
            self.is_over = True
            self._weights = {name: value.clone() for name, value in run.model.state_dict().items()}

    def after_step(self, run: Runner) -> None:
        if self.is_over:
            run.model.load_state_dict(self._weights)
            raise StopTraining


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
def forward_of(model: nn.Module, data: DataSource, seed: int) -> Iterator[Callable[[Tensor], Any]]:
    """Yield a function that runs the model; if its forward raises, the hint is an option.

    Inside, every random generator that a training may use is seeded; at the end these and the data are restored.
    """
    with (
        data.as_found(),
        seeded(seed),
        kept_random_states(),
        HookSession(model, [], is_restoring=False, with_gradients=True) as session,
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
