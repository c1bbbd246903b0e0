"""`grads`: one forward and one backward pass per batch, and the gradients in it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.activations.batch_norm import (
    BatchNormObserver,
    frozen_but_moving,
    never_saw_a_batch,
    trains_batch_norm,
)
from modelscope_cli.analysis.gradients.freezing import flags_kept, run_backward, set_trainable
from modelscope_cli.analysis.gradients.gradient_statistics import (
    ActivationGradients,
    ParameterGradients,
    global_norm,
    length,
)
from modelscope_cli.analysis.gradients.losses import Criterion, Loss
from modelscope_cli.analysis.gradients.request import GradsRequest
from modelscope_cli.analysis.outputs.classes import ClassScores
from modelscope_cli.analysis.outputs.degenerate import Degenerate, judged, score_std, too_large
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import TargetSpec
from modelscope_cli.devices import widest_float
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.fetch import Deferred, joined, numbers
from modelscope_cli.hooks.layers import refuse_layouts, without_gradient
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import ForwardError, HookSession, Intervention
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.grads import (
    ActivationGradient,
    ClipInfo,
    GradTotals,
    LossInfo,
    ParameterGradient,
    is_judged,
    mark,
)
from modelscope_cli.records.run import SATURATED, Arguments, Notice
from modelscope_cli.records.stats import BatchNormDrift

_OF_CLASSES = "cross-entropy", "nll", "bce"
# A loss of classes: of -log p, so that p is over 99.9 % in the mean, and the gradient 1 - p of that at the output
_SURE = 1e-3

_UNSCALED = Notice(
    "fresh_batch_norms",
    "no batch norm has seen a batch yet, so in eval mode they do not normalise, and vanishing gradients are "
    "only judged in train mode",
)


@dataclass(frozen=True, slots=True)
class Gradients:
    """The measurements; the fields are those of `GradsRecord`."""

    loss: LossInfo
    parameters: tuple[ParameterGradient, ...]
    activations: tuple[ActivationGradient, ...]
    totals: GradTotals
    clip: ClipInfo | None
    passes: int
    batch_norm: tuple[BatchNormDrift, ...]
    degenerate: Degenerate
    warnings: tuple[Notice, ...]


class GradientMeasurement:
    """A forward and a backward pass for every batch; the model is not changed.

    Args:
        selection: the layers whose activations are shown.
        aim: the number that is differentiated instead of a loss.
        interventions: change what flows, forward and backward.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        selection: Selection,
        request: GradsRequest,
        aim: TargetSpec | None = None,
        interventions: Sequence[Intervention] = (),
    ) -> None:
        self._interventions = interventions
        self._loaded = loaded
        self._model = loaded.module
        self._request = request
        self._reader = OutputReader.of(loaded)
        self._criterion = Criterion(request.loss, self._reader, aim)
        self._degenerate = Degenerate()
        self._shown = selection
        self._activations = ActivationGradients(is_innermost_only=selection.is_innermost_only)
        self._batch_norms = BatchNormObserver()
        self._judged: list[Deferred[None]] = []  # of the last batch
        self._output_squares: list[Tensor] = []
        self._losses: list[Tensor] = []
        self._stds = [0.0]  # of the scores of the classes, by pass
        self._n_images: list[int] = []  # of each pass

    def run(
        self,
        batches: Iterable[Batch],
        track: Callable[[Iterable[Batch], str], Iterator[Batch]] = lambda batches, what: iter(batches),
    ) -> Gradients:
        """Return the gradients; `track` wraps an iteration to show its progress."""
        request, model = self._request, self._model
        with flags_kept(model):
            was_trainable = _flags(model)
            set_trainable(model, request.freeze, request.train_only)
            _refuse(self._loaded, was_trainable)
            collector = ParameterGradients(model, request.clip)
            loss = None
            observers = [self._activations, self._batch_norms]
            with HookSession(
                model,
                observers,
                wanted=self._shown.wanted,
                names=self._shown.names,
                is_training=request.is_training,
                with_gradients=True,
                interventions=self._interventions,
            ) as session:
                for batch in track(batches, "gradients"):
                    waiting: list[Deferred[Any]] = [self._activations.settled(), *self._judged]
                    joined(waiting)()  # of the batch before; those of the last come with all else
                    self._judged.clear()
                    self._n_images.append(max(batch.n_images, 1))
                    model.zero_grad(set_to_none=True)
                    loss = self._forward(session, batch)
                    for tensor in loss.outputs:
                        tensor.register_hook(self._see_start)
                    self._losses.append(loss.value.detach())
                    run_backward(loss.value)
                    collector.take(self._n_images[-1])
                    self._activations.detach()
                collector.clip_mean()
                orders = {name: call.order for name, call in session.first_calls.items()}
            assert loss is not None  # there is always a batch
            return self._conclude(collector, orders, loss)

    def _forward(self, session: HookSession, batch: Batch) -> Loss:
        args = batch.args
        is_searching = self._request.is_training and self._loaded.family == "detection"
        label = self._criterion.detection_label() if is_searching else 1
        if is_searching:
            args = training_args(self._model, self._loaded.family, args, label)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                output = session.run(args)
                loss = self._criterion(output, args, batch.truth)
        except ForwardError as error:
            if is_searching and isinstance(error.__cause__, IndexError):
                message = f"target {label} is out of range: {str(error.__cause__).rstrip('.')}"
                raise UsageError(message, "--target 1") from error
            if is_searching and (error.hint or "").startswith("--mode eval"):
                error.hint = (
                    "--mode eval --target box:0   the score of a box; the loss needs images and --batch 2"
                )
            raise
        self._judge(output, args, loss)
        return loss

    def _judge(self, output: Any, args: Arguments, loss: Loss) -> None:
        """Note whether the scores that the loss was computed from say nothing."""
        if self._loaded.family == "detection" or loss.outputs[0].ndim < 2:
            return
        answer, value = self._reader.read(output, args), loss.value.detach()
        if isinstance(answer.main, ClassScores):
            self._judged.append(Deferred((score_std(answer.main.tensor()),), self._stds.append))
        found = judged(answer, args)

        def note(value: Tensor, *tensors: Tensor) -> None:
            seen = found.finish(*tensors)
            # The loss of another class keeps its gradient beside saturated scores.
            is_kept = (
                not loss.name.startswith(_OF_CLASSES) or abs(float(value)) >= torch.finfo(value.dtype).eps
            )
            if SATURATED in seen.codes and not getattr(answer.main, "ending", "") and is_kept:
                seen = Degenerate(("",) * len(seen.codes))
            self._degenerate += seen

        self._judged.append(Deferred((value, *found.tensors), note))

    def _see_start(self, grad: Tensor | None) -> None:
        if grad is not None:
            self._output_squares.append(length(grad, widest_float(grad.device)).square())

    def _conclude(self, collector: ParameterGradients, orders: dict[str, int], loss: Loss) -> Gradients:
        request = self._request
        n_passes = len(self._n_images)
        parts: list[Deferred[Any]] = [
            numbers(self._output_squares),
            numbers(self._losses),
            Deferred((), tuple)
            if loss.classes is None
            else Deferred((loss.classes,), lambda classes: tuple(classes.tolist())),
            never_saw_a_batch(self._model),
            self._batch_norms.rows(),
            collector.figures(),
            self._activations.settled(),
            *self._judged,
        ]
        squares, losses, classes, is_fresh, batch_norm, figures, *_ = joined(parts)()
        output_norm = math.sqrt(sum(squares) / n_passes)
        # Batch norms that have seen no batch do not normalise in eval mode, as those that are trained will.
        is_unscaled = not request.is_training and is_fresh and trains_batch_norm(self._model)
        rows = collector.rows(figures, orders, output_norm, by_size=not is_unscaled)
        info = LossInfo(
            name=loss.name,
            value=sum(map(mul, losses, self._n_images)) / sum(self._n_images),
            target=self._criterion.target_in_words(loss, classes, n_passes),
            classes=classes,
        )
        totals = self._totals(rows, output_norm)
        norms = [row.grad_norm for row in rows if row.grad_norm and is_judged(row.shape)]
        is_hidden = is_unscaled and any(mark(norm, output_norm) for norm in norms)
        parameters = tuple(row for row in rows if _is_shown(row.layer, self._shown))
        return Gradients(
            loss=info,
            parameters=parameters,
            activations=self._activations.rows(output_norm, by_size=not is_unscaled),
            totals=totals,
            clip=request.clip,
            passes=n_passes,
            batch_norm=batch_norm,
            degenerate=self._degenerate,
            warnings=(
                *(() if self._degenerate.told() else _notices(info, totals)),
                *[_UNSCALED] * is_hidden,
                *too_large(float(max(self._stds)), self._model, is_training=request.is_training),
                *frozen_but_moving(batch_norm),
            ),
        )

    def _totals(self, rows: tuple[ParameterGradient, ...], output_norm: float) -> GradTotals:
        clip = self._request.clip
        trained = [row for row in rows if row.trainable]
        n_trained = sum(row.numel for row in trained)
        fraction = None
        if clip is not None:
            fraction = sum((row.clipped_fraction or 0) * row.numel for row in trained) / n_trained
        return GradTotals(
            grad_norm=global_norm(rows, "grad_norm"),
            norm_before_clip=global_norm(rows, "norm_before_clip") if clip else None,
            clipped_fraction=fraction,
            trainable_params=n_trained,
            frozen_params=sum(row.numel for row in rows) - n_trained,
            output_grad_norm=output_norm,
        )


def _is_shown(layer: str, selection: Selection) -> bool:
    """Whether to show the parameters of a layer: it or, by name, one of its parents is selected."""
    names = selection.names
    if names is None or layer in names:
        return True
    parts = layer.split(".")
    around = {".".join(parts[:n]) for n in range(len(parts))}
    return not selection.is_innermost_only and not names.isdisjoint(around)


def _flags(model: nn.Module) -> list[bool]:
    return [parameter.requires_grad for parameter in model.parameters()]


def _refuse(loaded: LoadedModel, was_trainable: list[bool]) -> None:
    model = loaded.module
    refuse_layouts(model)
    quantized = without_gradient(model)
    if quantized is not None:
        is_ours = loaded.info.source == "zoo"
        other = "--weights none   or the model of the same name without quantized_"
        raise CannotRunError(quantized, other if is_ours else "use the model from before quantization")
    if any(_flags(model)):
        return
    if any(was_trainable):
        raise UsageError("there is nothing left to train", "leave out --freeze   or freeze less")
    if was_trainable:
        message = "every parameter of the model is frozen"
        raise CannotRunError(message, "--train-only '*'   trains them anyway")
    message = "the model has no parameters, so there is nothing to train"
    raise CannotRunError(message, "modelscope stats ...   needs no gradients")


def _notices(loss: LossInfo, totals: GradTotals) -> tuple[Notice, ...]:
    if not math.isfinite(loss.value):
        return (Notice("nonfinite_loss", f"the loss is {loss.value}, so no gradient is meaningful"),)
    hint = "; try --target with another class" if loss.classes else ""
    if totals.output_grad_norm == 0:
        message = f"the loss ({loss.value:.3g}) has a zero gradient everywhere{hint}"
        return (Notice("no_output_gradient", message),)
    if loss.name.startswith(_OF_CLASSES) and loss.value < _SURE:
        message = f"the loss is {loss.value:.3g}, as the targets are predicted with a probability near 1, "
        return (Notice("tiny_loss", f"{message}so all gradients are small{hint}"),)
    return ()
