"""`check`: gather what the rules look at, in as few passes as possible and nothing that no rule needs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver
from modelscope_cli.analysis.activations.observer import ActivationObserver, to_row
from modelscope_cli.analysis.gradients.measure import measure_gradients
from modelscope_cli.analysis.gradients.request import AUTO, GradsRequest, LossRequest
from modelscope_cli.analysis.health.flow import FlowObserver
from modelscope_cli.analysis.health.weights import all_finite, batch_norm_states, tensor_health
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.summary.shapes import measure_shapes
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import HookSession
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.detection_targets import training_args
from modelscope_cli.models.load import LoadedModel
from modelscope_cli.models.seeding import seeded
from modelscope_cli.records.evidence import Backward, Evidence, Forward, Structure, TrainMode

# Below this an activation counts as near zero: rule MS205.
NEAR_ZERO = 1e-3
_NOT_FINITE = "the forward pass is not finite"

Track = Callable[[Iterable[Any], str], Iterator[Any]]


def gather(
    loaded: LoadedModel,
    batches: Iterable[Batch],
    needs: frozenset[str],
    *,
    is_training: bool = False,
    is_real: bool = False,
    seed: int = 0,
    track: Track = lambda batches, what: iter(batches),
) -> Evidence:
    """Look at everything the rules need; the model is left as it was.

    Args:
        needs: fields of `Evidence`.
        is_training: run forward and backward in train mode.
        is_real: the input is pictures or a tensor file, not noise.
        seed: of what is random in a pass: dropout.

    Raises:
        ForwardError: the model raised in its main pass (exit 4). What cannot be had otherwise is `missing`.
    """
    return _Checkup(loaded, batches, is_training, track).gather(needs, Evidence(is_real=is_real), seed)


class _Checkup:
    def __init__(
        self, loaded: LoadedModel, batches: Iterable[Batch], is_training: bool, track: Track
    ) -> None:
        self._loaded = loaded
        self._model = loaded.module
        self._batches = batches
        self._is_training = is_training
        self._track = track
        self._missing: dict[str, str] = {}

    def gather(self, needs: frozenset[str], evidence: Evidence, seed: int) -> Evidence:
        if "tensors" in needs:
            evidence = replace(evidence, tensors=tensor_health(self._model))
        evidence = replace(evidence, batch_norms=batch_norm_states(self._model), missing=self._missing)
        if "structure" in needs:
            evidence = replace(evidence, structure=self._structure())
        passes = needs & {"forward", "repeat_gap", "train", "backward"}
        if not passes:
            return evidence
        with seeded(seed):
            forward = self._forward()
            evidence = replace(evidence, forward=forward)
            if not forward.is_finite:
                self._missing.update(dict.fromkeys(passes - {"forward"}, _NOT_FINITE))
                return evidence
            if "repeat_gap" in passes:
                with self._missing_where_refused("repeat_gap"):
                    evidence = replace(evidence, repeat_gap=self._repeat_gap())
            if "train" in passes:
                with self._missing_where_refused("train"):
                    evidence = replace(evidence, train=self._train())
            if "backward" in passes:
                with self._missing_where_refused("backward"):
                    evidence = replace(evidence, backward=self._backward(forward))
        return evidence

    @contextmanager
    def _missing_where_refused(self, field: str) -> Iterator[None]:
        """Let a step that this model does not take, such as differentiating a quantized one, be missing."""
        try:
            yield
        except ModelscopeError as error:
            self._missing[field] = error.message

    def _arguments(self, batch: Batch, is_training: bool) -> tuple[Any, ...]:
        return training_args(self._model, self._loaded.family, batch.args) if is_training else batch.args

    def _structure(self) -> Structure:
        measured = measure_shapes(self._model, _of_one_image(next(iter(self._batches)).args))
        if measured.error is not None:
            raise measured.error
        return Structure(measured.layers, measured.totals, measured.layers[0].output_shapes)

    def _forward(self) -> Forward:
        wanted = Wanted(mad=False, histogram=False, threshold=NEAR_ZERO)
        activations, flow = ActivationObserver(wanted, is_innermost_only=True), FlowObserver()
        answers: list[int] | None = []
        n_images, is_input_finite = 0, True
        with HookSession(self._model, [activations, flow], is_training=self._is_training) as session:
            for batch in self._track(self._batches, "activations"):
                output = session.run(self._arguments(batch, self._is_training))
                activations.settle()
                main = _main_output(output)
                is_classifier = main is not None and main.ndim == 2 and main.shape[1] >= 2
                if answers is not None and main is not None and is_classifier:
                    answers += main.argmax(1).tolist()
                else:
                    answers = None
                inputs = [tensor for _, tensor in tensors_in(batch.args) if tensor.is_floating_point()]
                is_input_finite &= all(bool(all_finite(tensor)) for tensor in inputs)
                n_images += batch.n_images
        rows = sorted(activations.activations.values(), key=lambda activation: activation.call.order)
        return Forward(
            activations=tuple(map(to_row, rows)),
            flow=flow.rows(),
            near_zero=NEAR_ZERO,
            images=n_images,
            answers=None if answers is None else tuple(answers),
            is_input_finite=is_input_finite,
        )

    def _repeat_gap(self) -> float | None:
        batch = next(iter(self._batches))
        with HookSession(self._model) as session:
            first = _kept(session.run(batch.args))
            second = _kept(session.run(batch.args))
        return _gap(first, second)

    def _train(self) -> TrainMode:
        with HookSession(self._model) as session:
            calm = _kept(session.run(next(iter(self._batches)).args))
        batch_norms = BatchNormObserver()
        trained: Tensor | None = None
        with HookSession(self._model, [batch_norms], is_training=True) as session:
            for i, batch in enumerate(self._track(self._batches, "train mode")):
                output = session.run(self._arguments(batch, True))
                trained = _kept(output) if i == 0 else trained
        return TrainMode(batch_norms.rows(), _gap(calm, trained))

    def _backward(self, forward: Forward) -> Backward:
        # The score of the predicted class always has a gradient; a cross-entropy that is sure of it has none.
        loss = LossRequest("logit" if forward.answers is not None else AUTO)
        has_own_loss = self._loaded.family == "detection"
        gradients = measure_gradients(
            self._loaded,
            self._batches,
            Selection(is_innermost_only=True),
            GradsRequest(loss, is_training=self._is_training or has_own_loss),
            track=self._track,
        )
        return Backward(gradients.parameters, gradients.activations, gradients.totals.output_grad_norm)


def _of_one_image(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Keep the first image of a batch, so that budgets mean the same whatever the batch."""
    return tuple(arg[:1] if isinstance(arg, list) or arg.ndim else arg for arg in args)


def _main_output(output: Any) -> Tensor | None:
    floats = [tensor for _, tensor in tensors_in(output) if tensor.is_floating_point()]
    return floats[0].detach() if floats else None


def _kept(output: Any) -> Tensor | None:
    main = _main_output(output)
    return None if main is None else main.double().clone()


def _gap(first: Tensor | None, second: Tensor | None) -> float | None:
    """Return |second - first| / |first|; None where they cannot be compared."""
    if first is None or second is None or first.shape != second.shape:
        return None
    norm = torch.linalg.vector_norm(first)
    return float(torch.linalg.vector_norm(second - first) / norm) if norm > 0 else None
