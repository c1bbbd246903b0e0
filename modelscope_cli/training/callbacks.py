"""The callbacks of `modelscope train`."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import eq

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.predictions.scores import class_scores
from modelscope_cli.records.train import Measurement
from modelscope_cli.training.runner import Callback, LabelledBatch, Runner


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """The device and dtype of a model: inputs are moved and cast to them, targets moved."""

    device: torch.device
    dtype: torch.dtype = torch.float32

    def put(self, inputs: Tensor) -> Tensor:
        return inputs.to(self.device, self.dtype if inputs.is_floating_point() else inputs.dtype)


class On(Callback):
    """Calls a function with the `Runner` at one event, such as `after_step`."""

    def __init__(self, event: str, call: Callable[[Runner], object]) -> None:
        setattr(self, event, call)


def to_place(place: ModelPlace) -> On:
    """Return a callback that moves every batch to the device of the model."""

    def move(run: Runner) -> None:
        run.inputs, run.targets = place.put(run.inputs), run.targets.to(place.device)

    return On("begin_batch", move)


class HeldOut(Callback):
    """Measures loss and accuracy on the held-out images after every epoch and at the end."""

    def __init__(self, batches: Iterable[LabelledBatch], place: ModelPlace) -> None:
        self.batches, self.place = batches, place
        self.results: list[Measurement] = []
        self.labels: list[int] = []  # of the last measurement

    def after_epoch(self, run: Runner) -> None:
        self._measure(run)

    def after_fit(self, run: Runner) -> None:
        if not self.results or self.results[-1].step != run.step:
            self._measure(run)

    @torch.no_grad()
    def _measure(self, run: Runner) -> None:
        loss, labels, predicted = 0.0, list[int](), list[int]()
        run.model.eval()
        for inputs, targets in self.batches:
            scores = class_scores(run.model(self.place.put(inputs)))
            loss += float(F.cross_entropy(scores, targets.to(self.place.device))) * len(targets)
            labels += targets.tolist()
            predicted += scores.argmax(1).tolist()
        run.model.train()
        self.labels = labels
        if labels:
            mean = loss / len(labels) if math.isfinite(loss) else None
            self.results.append(Measurement(run.step, mean, sum(map(eq, labels, predicted)) / len(labels)))
