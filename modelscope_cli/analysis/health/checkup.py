"""`check`: collect the evidence that the rules need, in as few passes as possible."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.hooks import RemovableHandle

from modelscope_cli.analysis.activations.batch_norm import BatchNormObserver, NormInputObserver
from modelscope_cli.analysis.activations.observer import (
    Activation,
    ActivationObserver,
    ArgumentStats,
    Key,
    entered,
    merge_arguments,
    merge_into,
    rms_at_first_weights,
    to_input_row,
    to_rows,
)
from modelscope_cli.analysis.gradients.measure import GradientMeasurement, Gradients
from modelscope_cli.analysis.gradients.request import AUTO, GradsRequest, LossRequest
from modelscope_cli.analysis.health.flow import (
    FlowObserver,
    OutputDiversity,
    ScaledZeroInit,
    all_finite,
    batch_norm_states,
    noise_like,
    norm_parameters,
    tensor_health,
)
from modelscope_cli.analysis.health.lost_signal import lost_signal
from modelscope_cli.analysis.outputs.classes import ClassScores
from modelscope_cli.analysis.outputs.degenerate import score_std
from modelscope_cli.analysis.outputs.output_kinds import leaves_of
from modelscope_cli.analysis.outputs.read import OutputReader
from modelscope_cli.analysis.outputs.target_spec import name_class
from modelscope_cli.analysis.predictions.folder_truth import RightPredictions
from modelscope_cli.analysis.statistics.moments import Wanted
from modelscope_cli.analysis.summary.memory import StepOptions, forward_peak, resized
from modelscope_cli.analysis.summary.shapes import measure_shapes
from modelscope_cli.analysis.summary.training_steps import TrainingSteps
from modelscope_cli.errors import ModelscopeError
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import HookSession, Intervention
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.models.architecture import seeded
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.records.check import Accuracy
from modelscope_cli.records.check_evidence import Backward, Evidence, Forward, Structure, TrainMode
from modelscope_cli.records.grads import ParameterGradient
from modelscope_cli.records.naming import layer_of
from modelscope_cli.records.run import Args, Arguments, Kwargs, Share
from modelscope_cli.records.stats import LARGE_SCORES, InputStats
from modelscope_cli.source_location import place_of_caller

_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "dropout", "poisson", "exponential_", "uniform_")


class RandomDraws(TorchFunctionMode):
    """Records the random functions called while it is active, each once: `torch.rand at net.py:12`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}  # name and location of each function, in the order of the calls

    def __torch_function__(self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        name = getattr(func, "__name__", "")
        if name.startswith(_RANDOM) or name.endswith("dropout"):
            kwargs = kwargs or {}
            is_off = "dropout" in name and not (args[2:3] or (kwargs.get("training", True),))[0]
            if not is_off:
                place = place_of_caller()
                self.seen.setdefault(f"{resolve_name(func) or name}{f' at {place}' if place else ''}")
        return func(*args, **(kwargs or {}))


# Below this an activation counts as near zero: rule MS205.
NEAR_ZERO = 1e-6
# An input above this root mean square is measured again at the first weights.
_LARGE = 3.0

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
    """Collect the evidence the rules need; the model is not changed.

    Args:
        needs: fields of `Evidence`.
        is_training: run forward and backward in train mode.
        is_real: the input is images or a tensor file, not noise.
        seed: of random operations in a pass, such as dropout.
    """
    checkup = _Checkup(loaded, batches, is_training, track, seed)
    is_loaded = loaded.info.weights.origin in ("cache", "download", "checkpoint")
    untrained = tuple(one.message for one in loaded.warnings if one.code == "untrained_weights")
    return checkup.gather(needs, Evidence(is_real=is_real, is_loaded=is_loaded, untrained=untrained))


class _Checkup:
    def __init__(
        self, loaded: LoadedModel, batches: Iterable[Batch], is_training: bool, track: Track, seed: int
    ) -> None:
        self._loaded = loaded
        self._model = loaded.module
        self._batches = batches
        self._is_training = is_training
        self._track, self._seed = track, seed
        self._missing: dict[str, str] = {}
        self._right, self._reader = RightPredictions(), OutputReader.of(loaded)

    def gather(self, needs: frozenset[str], evidence: Evidence) -> Evidence:
        if "tensors" in needs:
            evidence = replace(evidence, tensors=tensor_health(self._model))
        norms, parameters = batch_norm_states(self._model), norm_parameters(self._model)
        evidence = replace(evidence, batch_norms=norms, norms=parameters, missing=self._missing)
        if "inputs" in needs:
            inputs, n_flat = self._inputs()
            is_large = any((one.rms or 0.0) > _LARGE for one in inputs)
            first_rms = (
                rms_at_first_weights(self._model, next(iter(self._batches)).args) if is_large else None
            )
            evidence = replace(evidence, inputs=inputs, flat_images=n_flat, first_rms=first_rms)
        if "structure" in needs:
            evidence = replace(evidence, structure=self._structure())
        if "forward_bytes" in needs:
            batch = next(iter(self._batches))
            evidence = replace(evidence, forward_bytes=forward_peak(self._model, resized(batch.args, 1)))
        if "training_bytes" in needs:
            with self._missing_if_refused("training_bytes"):
                args = self._arguments(next(iter(self._batches)), is_training=True)
                steps = TrainingSteps(self._model, args, StepOptions(), lambda reason: (self._model, args))
                evidence = replace(evidence, training_bytes=steps.smallest()[1])
        passes = needs & {"forward", "repeat_gap", "train", "backward"}
        if not passes:
            if self._is_finite():
                return evidence
            passes = frozenset({"forward"})
        with seeded(self._seed):
            forward = self._forward()
            evidence = replace(evidence, forward=forward, accuracy=self._right.accuracy(self._name))
            self._missing.update(("accuracy", why) for why in self._right.unknown if self._right.share())
            if not forward.is_finite:
                self._missing.update(dict.fromkeys(passes - {"forward"}, "forward values are not finite"))
                return evidence
            if "repeat_gap" in passes:
                with self._missing_if_refused("repeat_gap"):
                    gap = _gap(*self._twice)
                    evidence = replace(evidence, repeat_gap=gap, draws=self._draws() if gap else ())
            if "train" in passes:
                with self._missing_if_refused("train"):
                    evidence = replace(evidence, train=self._train(evidence.accuracy))
            zero_init = ScaledZeroInit(self._model)
            may_rescale = zero_init.zero_initialised and not self._is_trained(evidence)
            if "backward" in passes or ("forward" in passes and may_rescale):
                with self._missing_if_refused("backward"), zero_init:
                    backward = self._rescale(zero_init, forward) if may_rescale else self._backward(forward)
                    evidence = replace(evidence, backward=backward)
                    if zero_init.rescaled:
                        rescaled = self._forward("activations with rescaled weights")
                        evidence = replace(evidence, rescaled=rescaled)
        return evidence

    def _is_trained(self, evidence: Evidence) -> bool:
        """Whether the model was trained, as far as is known: then zeros are not an initialisation."""
        norms, has_seen = evidence.norms, any(not norm.is_fresh for norm in evidence.batch_norms)
        return has_seen or (evidence.is_loaded and not (norms and all(norm.is_as_made for norm in norms)))

    def _rescale(self, zero_init: ScaledZeroInit, forward: Forward) -> Backward:
        """Re-scale zero-initialised parameters step by step: a head of zeros blocks gradients until re-scaled."""
        backward = self._backward(forward)
        while zero_init.rescale(backward):
            backward = self._backward(forward)
        return backward

    @contextmanager
    def _missing_if_refused(self, field: str) -> Iterator[None]:
        """Record a step that fails for this model, such as differentiating a quantized one, as missing."""
        try:
            yield
        except ModelscopeError as error:
            self._missing[field] = error.message

    def _arguments(self, batch: Batch, is_training: bool) -> Arguments:
        return training_args(self._model, self._loaded.family, batch.args) if is_training else batch.args

    def _inputs(self) -> tuple[tuple[InputStats, ...], int]:
        """Return the statistics of every argument, and the number of images of one colour."""
        arguments, n_flat = dict[str | int, ArgumentStats](), 0
        for batch in self._track(self._batches, "inputs"):
            merge_arguments(arguments, entered(batch.args)())
            for _, first in tensors_in(batch.args)[:1]:
                if first.ndim == 4 and first.is_floating_point() and first[0, 0].numel() > 1:
                    n_flat += int((first.amax((2, 3)) == first.amin((2, 3))).all(1).sum())
        return tuple(map(to_input_row, arguments.values())), n_flat

    def _structure(self) -> Structure:
        batch = next(iter(self._batches))
        measured, n_images = measure_shapes(self._model, resized(batch.args, 1)), 1
        if measured.error is not None and batch.n_images > 1:
            # An exported program has a fixed batch size.
            measured, n_images = measure_shapes(self._model, batch.args), batch.n_images
        if measured.error is not None:
            raise measured.error
        return Structure(measured.layers, measured.totals, measured.layers[0].output_shapes, n_images)

    def _forward(self, phase: str = "activations") -> Forward:
        wanted = Wanted(histogram=False, threshold=NEAR_ZERO)
        activations = ActivationObserver(wanted, is_innermost_only=True, is_by_call=True)
        flow, norms, spread = FlowObserver(), NormInputObserver(), OutputDiversity()
        outputs: dict[Key, Activation] = {}
        answers: list[str] | None = []  # None where the model is not a classifier
        n_images, is_input_finite, stds = 0, True, [0.0]

        with HookSession(
            self._model, [activations, flow, norms], is_training=self._is_training, interventions=[Steady()]
        ) as session:
            for batch in self._track(self._batches, phase):
                output = session.run(self._arguments(batch, self._is_training))
                main = self._main(output)
                merge_into(outputs, activations.take()())
                norms.settle()
                spread.see(batch, main)
                scores = None if main is None else self._row_of_scores(output, batch)
                if main is None or scores is None:
                    answers = None
                elif answers is not None:
                    answers += map(self._name, main.argmax(1).tolist())
                    stds.append(float(score_std(main)))
                    self._right.add(main, None if scores.has_several else batch.truth(main.shape[1]))
                inputs = [tensor for _, tensor in tensors_in(batch.args) if tensor.is_floating_point()]
                is_input_finite &= all(bool(all_finite(tensor)) for tensor in inputs)
                n_images += batch.n_images
            calls = flow.rows()
            if n_images == 1:
                other = noise_like(next(iter(self._batches)))
                spread.see(other, self._main(session.run(self._arguments(other, self._is_training))))
        is_suspect = spread.largest == 0 or (max(stds) > LARGE_SCORES and len({*(answers or ())}) == 1)
        lost = lost_signal(self._model, next(iter(self._batches)), self._seed) if is_suspect else None
        return Forward(
            activations=to_rows(outputs.values()),
            flow=calls,
            near_zero=NEAR_ZERO,
            images=n_images,
            answers=None if answers is None else tuple(answers),
            is_input_finite=is_input_finite,
            output_spread=spread.largest,
            norms=norms.rows(),
            score_std=None if answers is None else max(stds),
            lost=lost[:2] if lost else None,
        )

    def _name(self, index: int) -> str:
        return name_class(index, self._loaded.categories)

    def _is_finite(self) -> bool:
        """Whether the output for the first batch is finite, if nothing else needs a forward pass."""
        batch = next(iter(self._batches))
        with suppress(ModelscopeError), seeded(self._seed):
            with HookSession(self._model, is_training=self._is_training, interventions=[Steady()]) as session:
                output = session.run(self._arguments(batch, self._is_training))
            return all(bool(all_finite(tensor)) for _, tensor in leaves_of(output))
        return True

    def _main(self, output: Any) -> Tensor | None:
        leaves = leaves_of(output)
        return self._reader.main_of(leaves)[1].detach() if leaves else None

    def _main_double(self, output: Any) -> Tensor | None:
        main = self._main(output)
        return None if main is None else main.to("cpu", torch.float64, copy=True)

    def _row_of_scores(self, output: Any, batch: Batch) -> ClassScores | None:
        if self._loaded.family == "detection":  # its outputs with two dimensions are boxes
            return None
        path, main = self._reader.main_of(leaves_of(output))
        part = self._reader.part_of(path, main, batch.args)
        return part if isinstance(part, ClassScores) else None

    @cached_property
    def _twice(self) -> tuple[Tensor | None, Tensor | None]:
        """The output for the first batch, and that of a second run."""
        args = next(iter(self._batches)).args
        with HookSession(self._model) as session:
            return self._main_double(session.run(args)), self._main_double(session.run(args))

    def _draws(self) -> tuple[str, ...]:
        draws = RandomDraws()
        with HookSession(self._model) as session, draws:
            session.run(next(iter(self._batches)).args)
        return tuple(draws.seen)

    def _train(self, accuracy: Accuracy | None) -> TrainMode:
        eval_output, _ = self._twice
        batch_norms, right = BatchNormObserver(), RightPredictions()
        train_output: Tensor | None = None
        n_images = 0
        with HookSession(self._model, [batch_norms], is_training=True) as session:
            for i, batch in enumerate(self._track(self._batches, "train mode")):
                output = session.run(self._arguments(batch, True))
                train_output = self._main_double(output) if i == 0 else train_output
                n_images += batch.n_images
                self._count(output, batch, right)
        gap = _gap(eval_output, train_output)
        found = TrainMode(batch_norms.rows()(), gap, n_images, right.share())
        if not (accuracy and found.right and found.right.is_above(accuracy.right)):
            return found
        code = {module: name for name, module in self._model.named_modules() if _reads_training(module)}
        return replace(
            found,
            norms_right=self._right_with(lambda module: isinstance(module, _NormBase)),
            code_right=self._right_with(code.__contains__) if code else None,
            code=tuple(f"{name or 'the model'} ({type(module).__name__})" for module, name in code.items()),
        )

    def _right_with(self, is_training: Callable[[nn.Module], bool]) -> Share | None:
        """Return the share of right predictions with only some modules in train mode."""
        right = RightPredictions()
        with HookSession(self._model) as session:
            for module in self._model.modules():
                module.training = is_training(module)
            for batch in self._track(self._batches, "train mode"):
                self._count(session.run(batch.args), batch, right)
        return right.share()

    def _count(self, output: Any, batch: Batch, right: RightPredictions) -> None:
        main = self._main(output)
        if main is not None and self._right.share() and self._row_of_scores(output, batch):
            right.add(main, batch.truth(main.shape[1]))

    def _backward(self, forward: Forward) -> Backward:
        # The score of the predicted class always has a gradient; a confident cross-entropy has none.
        loss = LossRequest("logit" if forward.answers is not None else AUTO)
        gradients = self._differentiate(loss)
        rows, layers = self._usage(gradients.parameters)
        is_partial = self._loaded.family == "detection"
        output_norm = gradients.totals.output_grad_norm
        return Backward(rows, gradients.activations, output_norm, layers, is_partial)

    def _usage(
        self, rows: tuple[ParameterGradient, ...]
    ) -> tuple[tuple[ParameterGradient, ...], frozenset[str]]:
        """Return the rows, marked `unused` only if no output depends on them, and the layers in use."""
        is_frozen = any(row.mark == "frozen" for row in rows)
        others: dict[str, ParameterGradient] = {}
        if is_frozen or any(row.mark == "unused" for row in rows):
            whole = LossRequest("every output", function=every_output)
            with suppress(ModelscopeError):
                gradients = self._differentiate(whole, ("*",) * is_frozen)
                others = {row.name: row for row in gradients.parameters}
        layers = used_layers(self._model, (*rows, *others.values()))
        unused = {row.name for row in rows if row.mark == "unused"}
        used = unused & {name for name, row in others.items() if row.mark != "unused"}
        return tuple(replace(row, mark="") if row.name in used else row for row in rows), layers

    def _differentiate(self, loss: LossRequest, train_only: tuple[str, ...] = ()) -> Gradients:
        has_own_loss = self._loaded.family == "detection"
        is_training = self._is_training or has_own_loss
        request = GradsRequest(loss, train_only=train_only, is_training=is_training)
        selection = Selection(is_innermost_only=True)
        measurement = GradientMeasurement(self._loaded, selection, request, interventions=[Steady()])
        return measurement.run(self._batches, self._track)


class Steady(Intervention):
    """Keeps dropout and stochastic depth in eval mode: a branch that is skipped in one pass is not dead."""

    def attach(self, name: str, module: nn.Module) -> Iterable[RemovableHandle]:
        kind = type(module).__name__.lower()
        if "drop" in kind or "stochasticdepth" in kind:
            module.eval()
        return ()


def _reads_training(module: nn.Module) -> bool:
    """Tell whether the code of a class that is not torch's reads `self.training`."""
    kind = type(module)
    functions = (getattr(one, "__code__", None) for one in vars(kind).values())
    is_torch = kind.__module__.startswith("torch.")
    return not is_torch and any("training" in code.co_names for code in functions if code)


def _gap(first: Tensor | None, second: Tensor | None) -> float | None:
    """Return |second - first| / |first|; None where they cannot be compared."""
    if first is None or second is None or first.shape != second.shape:
        return None
    norm = torch.linalg.vector_norm(first)
    return float(torch.linalg.vector_norm(second - first) / norm) if norm > 0 else None


def every_output(output: Any) -> Tensor:
    """Return a loss of all outputs, so that whatever one of them depends on gets a gradient."""
    tensors = [tensor for _, tensor in tensors_in(output) if tensor.requires_grad]
    return torch.stack([tensor.abs().mean() for tensor in tensors]).sum()


def used_layers(model: nn.Module, rows: Iterable[ParameterGradient]) -> frozenset[str]:
    """Return the layers that own a parameter with a gradient, and their parents.

    `F.linear(x, self.proj.weight)` uses `proj` without calling it; a tied weight counts for each of its layers.
    """
    parameters = dict(model.named_parameters())
    used_ids = {id(parameters[row.name]) for row in rows if row.mark not in ("unused", "frozen")}
    names = {
        layer_of(name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) in used_ids
    }
    paths = [name.split(".") for name in names]
    return frozenset(".".join(path[:n]) for path in paths for n in range(1, len(path) + 1))
