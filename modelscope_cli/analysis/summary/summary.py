"""`summary`: the layers of a model with shapes and costs, on the meta device if possible, else with values."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.gradients.freezing import flags_kept, set_trainable
from modelscope_cli.analysis.spatial.fields import fields_of_outputs
from modelscope_cli.analysis.subject import (
    at_its_size,
    describe_module,
    first_of,
    header,
    open_for,
    refuse_idle,
    with_shapes,
)
from modelscope_cli.analysis.summary.memory import StepOptions
from modelscope_cli.analysis.summary.shapes import MeasuredStructure, measure_shapes
from modelscope_cli.analysis.summary.times import measure_times
from modelscope_cli.analysis.summary.training_steps import TrainingSteps
from modelscope_cli.errors import UsageError
from modelscope_cli.hooks.layers import list_layers, not_looked_into, tensors_in
from modelscope_cli.hooks.patterns import parse_pattern, pick_calls
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.inputs.batch import Inputs
from modelscope_cli.inputs.forward_signature import training_args
from modelscope_cli.inputs.python_inputs import PythonInputs, to_inputs
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.load import load_model, load_skeleton
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.models.request import Model, ModelRequest, as_request
from modelscope_cli.records.keywords import Keywords, ModelKeywords, SummaryKeywords, as_tuple, spelled_out
from modelscope_cli.records.progress import SILENT, Progress, counting, tell
from modelscope_cli.records.refusals import check_range, check_word, refuse_without
from modelscope_cli.records.run import Arguments, Notice, invocation
from modelscope_cli.records.summary import MEASURED, LayerShape, SummaryRecord, TrainingMemory
from modelscope_cli.rules.rule import read_threshold

_Key = tuple[str, int]


def with_measured(
    rows: Sequence[LayerShape],
    loaded: LoadedModel,
    args: Arguments,
    measure: Sequence[str],
    progress: Progress,
) -> tuple[tuple[LayerShape, ...], str | None]:
    """Return rows with the requested columns, and what measured times if it did."""
    columns: dict[str, Mapping[_Key, Any]] = {}
    timed_by = None
    with counting(progress, "measured", len(measure)) as step:
        for one in dict.fromkeys(measure):
            if one == "time":
                columns["time_ms"], timed_by = measure_times(loaded.module, args)
            else:
                # The largest of every call; none without an image
                sizes = columns["receptive_field"] = dict[_Key, tuple[int, int]]()
                is_image = any(tensor.ndim == 4 for _, tensor in tensors_in(args))
                of_outputs = fields_of_outputs(loaded.module, args) if is_image else {}
                for (name, call, _), field in of_outputs.items():
                    sizes[name, call] = max(field.largest(), sizes.get((name, call), (0, 0)))
            step()

    def filled(row: LayerShape) -> LayerShape:
        values: dict[str, Any] = {field: found.get((row.name, row.call)) for field, found in columns.items()}
        return replace(row, **values)

    return tuple(map(filled, rows)), timed_by


# Proposals and anchors depend on the values in the image, which a tensor without data does not have.
_NEEDS_VALUES = frozenset({"detection"})


@spelled_out
def summary(
    model: "Model",
    inputs: Any = None,
    *more: Tensor,
    depth: int | None = None,
    freeze: str | Sequence[str] = (),
    layer: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    measure: Sequence[str] = (),
    train: bool = False,
    optimizer: Any = "adamw",
    amp: str | None = None,
    fit: str | int | None = None,
    weights: str = "none",
    progress: Progress | None = None,
    **keywords: Unpack[SummaryKeywords],
) -> SummaryRecord:
    """Return the layers of a model with their shapes, parameters and cost in one forward.

    Args:
        model: a name or file as on the command line, built without data; or a module of yours, run where it is.
        inputs, more: what the forward is called with, as elsewhere or as several tensors; None for noise of the
            model's input size. Only the first batch is run.
        depth: show layers down to this nesting depth.
        freeze: count these layers' parameters as frozen.
        layer, exclude: which rows are kept; the totals are always of the whole model.
        measure: what else to measure of every call: `time`, `field`; the model then runs with values.
        train: also simulate one training step and report its memory; the noise batch is then 2.
        optimizer: the optimizer of the step: sgd, momentum, nesterov, rmsprop, adagrad, adam, adamw. In
            Python also torch optimizers over the parameters of the model, one or several.
        amp: run the forward of the step under autocast: bfloat16 or float16.
        fit: find the largest batch whose training step fits into this much memory, such as 24GB; implies `train`.

    Raises:
        UsageError: a name, keyword or pattern that is not valid (exit 2 on the command line).
        CannotRunError: the model cannot be built, or its forward raised: then `error.record` has the layers up
            to the one that did (exit 4).
    """
    train = train or fit is not None
    _check_options(depth, train, optimizer, amp, measure)
    invoked = invocation()
    progress = progress or SILENT
    model_keywords = cast(Keywords, keywords)
    python_inputs = to_inputs((inputs, *more) if more else inputs, model_keywords)
    frozen = as_tuple(freeze)
    step_options = StepOptions(optimizer, amp)
    limit = None if fit is None else _memory_of(fit)
    if train:
        python_inputs = with_two_images(python_inputs)
    if isinstance(model, LoadedModel | nn.Module):
        refuse_idle({**model_keywords, "weights": "auto" if weights == "none" else weights})
        loaded = model if isinstance(model, LoadedModel) else describe_module(model)
        measured = _measure(loaded, python_inputs, frozen, progress)
    else:
        model = as_request(model, cast(ModelKeywords, {**model_keywords, "weights": weights}))
        given = (python_inputs, frozen, progress)
        is_of_cuda = re.fullmatch(r"cuda(:\d+)?|\d+", model.device.lower()) is not None
        if train and not measure and is_of_cuda and not torch.cuda.is_available():  # traced as on it
            model, step_options = replace(model, device="auto"), replace(step_options, device="cuda")
        # Weights or a device that were asked for are used, as they are for every other command.
        has_values = bool(measure) or model.device.lower() != "auto" or model.weights.lower() != "none"
        measured = _measure(load_model(model), *given) if has_values else _measure_named(model, *given)
    if not isinstance(model, LoadedModel):  # its notes were printed when it was loaded
        tell(progress, (*measured.loaded.notes, *not_looked_into(measured.loaded.module)))
    loaded, opened, structure = measured.loaded, measured.inputs, measured.structure
    training = None
    if train and structure.error is None:
        n_steps = 1 if limit is None else 1 + _TO_FIT + _TO_SAVE
        with (
            counting(progress, "training steps to measure their memory", n_steps) as step,
            flags_kept(loaded.module),
            without_dynamo(loaded.info.source == "zoo"),
        ):
            set_trainable(loaded.module, frozen)
            steps = _training_steps(model, measured, python_inputs, step_options, progress, step)
            training = _as_on(steps.memory(), loaded.device)
            structure = replace(structure, layers=steps.rows(structure.layers))
            if limit is not None:
                found = steps.fit(limit)
                savings = steps.savings(training.batch) if training.batch > found.batch else ()
                training = replace(training, fit=found, savings=savings)
    rows = _keep(loaded.module, structure.layers, as_tuple(layer), as_tuple(exclude), depth)
    tell(progress, opened.notes, loaded.warnings)
    seed = python_inputs.request.seed
    error, timed_by = structure.error, None
    if measure and error is None:
        rows, timed_by = with_measured(rows, loaded, first_of(opened, loaded).args, measure, progress)
    record = SummaryRecord(
        run=header("summary", loaded, opened.info, seed, loaded.warnings, invoked),
        layers=rows,
        totals=structure.totals,
        uncounted_ops=structure.uncounted_ops,
        failed=error.call.label if error and error.call else None,
        training=training,
        timed_by=timed_by,
        shared=structure.shared,
    )
    if error is not None:
        error.record = record
        raise error
    return record


def _check_options(
    depth: int | None, train: bool, optimizer: Any, amp: str | None, measure: Sequence[str]
) -> None:
    check_range("depth", depth, least=0)
    check_word("amp", amp, ("bfloat16", "float16"))
    for name, value, default in (("optimizer", optimizer, "adamw"), ("amp", amp, None)):
        if not train and value is not default and not (isinstance(value, str) and value == default):
            refuse_without(name, value, "train", True)
    for one in measure:
        check_word("measure", one, MEASURED)


def _memory_of(fit: Any) -> int:
    """Return the memory in bytes that was given as `24GB`."""
    limit = int(cast(float, read_threshold(fit, "bytes", "--fit ")))
    if limit < 1000:
        raise UsageError(
            f"'--fit {fit}' is {limit} bytes, less than any model takes", f"--fit {limit or 24}GB"
        )
    if limit > _MOST_MEMORY:
        raise UsageError(f"'--fit {fit}' is more memory than any machine has", "--fit 24GB")
    return limit


def _as_on(training: TrainingMemory, device: torch.device) -> TrainingMemory:
    """Return the memory of a step, with a remark where it has the kernels of another device than the model."""
    if device.type in ("cpu", "meta", training.device):
        return training
    remark = f"kernels of {training.device} are assumed, as those of {device} are unknown"
    return replace(training, assumed=(*training.assumed, remark))


_TO_FIT, _TO_SAVE = 4, 2  # training steps, as a rule
_MOST_MEMORY = 2**50  # bytes


def with_two_images(given: PythonInputs) -> PythonInputs:
    """Return noise of two images where no number was asked for, as batch norm needs two values in training."""
    request = given.request
    is_free = request.batch is None and given.named is None and given.is_noise and not request.shapes
    return replace(given, request=replace(request, batch=2)) if is_free else given


def _training_steps(
    model: Any,
    measured: "_Measured",
    given: PythonInputs,
    options: StepOptions,
    progress: Progress,
    step: Callable[[], object],
) -> TrainingSteps:
    """Return the steps of a measured model; with values if they need some."""

    def arguments(loaded: LoadedModel, inputs: Inputs) -> Arguments:
        return training_args(loaded.module, loaded.family, first_of(inputs, loaded).args)

    if torch.cuda.is_available() and measured.loaded.device.type in ("cuda", "meta"):
        options = replace(options, device="cuda")

    def with_values(reason: str) -> tuple[nn.Module, Arguments]:
        loaded, inputs = measured.loaded, measured.inputs
        progress.note(f"the training step runs on real values: {reason}")
        if loaded.device.type == "meta":
            loaded = _for_real(model, reason)
            inputs = open_for(given, loaded, SILENT)
        return loaded.module, arguments(loaded, inputs)

    return TrainingSteps(
        measured.loaded.module, arguments(measured.loaded, measured.inputs), options, with_values, step
    )


@dataclass(frozen=True, slots=True)
class _Measured:
    """A model, its inputs, and its structure."""

    loaded: LoadedModel
    inputs: Inputs
    structure: MeasuredStructure


def _measure_named(
    request: ModelRequest, given: PythonInputs, freeze: Sequence[str], progress: Progress
) -> _Measured:
    """Build a model on the meta device and run it; with values, and a warning, if that fails."""
    loaded = load_skeleton(request)
    if loaded.device.type == "meta" and loaded.family in _NEEDS_VALUES:
        loaded = _for_real(request, f"{loaded.family} models compute their shapes from values")
    measured = _measure(loaded, given, freeze, progress)
    error = measured.structure.error
    # torchvision's models all run on meta, so their errors are real; other code may just need values.
    may_need_values = loaded.device.type == "meta" and loaded.info.source != "zoo"
    if error is not None and may_need_values and not _is_about_shapes(error):
        loaded = _for_real(request, str(error.__cause__).partition("\n")[0])
        measured = _measure(loaded, given, freeze, progress)
    return measured


def _is_about_shapes(error: ForwardError) -> bool:
    """Whether a forward raises with values as well, so that it need not run twice.

    If values are missing, torch's message names the meta device; a model's own checks of its input raise one of
    these, and Python a TypeError if an argument is missing.
    """
    cause, text = error.__cause__, str(error.__cause__)
    if isinstance(cause, TypeError):
        return "forward() " in text and "argument" in text
    is_checked = isinstance(cause, RuntimeError | ValueError | AssertionError | IndexError)
    return is_checked and not isinstance(cause, NotImplementedError) and "meta" not in text.lower()


def _for_real(request: ModelRequest, reason: str) -> LoadedModel:
    loaded = load_model(replace(request, weights="none", device="cpu"))
    notice = Notice("real_forward", f"run on the CPU with real values: {reason}")
    return replace(loaded, notes=(), warnings=(*loaded.warnings, notice))


def _measure(
    loaded: LoadedModel, given: PythonInputs, freeze: Sequence[str], progress: Progress
) -> _Measured:
    # No user code runs under the stand-ins.
    with without_dynamo(loaded.info.source == "zoo"):
        inputs = open_for(at_its_size(given, loaded, progress), loaded, SILENT)
        args = first_of(inputs, loaded).args
        loaded = with_shapes(loaded, args, given.request.seed, progress)
        with flags_kept(loaded.module):
            set_trainable(loaded.module, freeze)
            return _Measured(loaded, inputs, measure_shapes(loaded.module, args, progress))


def _keep(
    model: nn.Module,
    rows: tuple[LayerShape, ...],
    layers: Sequence[str],
    exclude: Sequence[str],
    depth: int | None,
) -> tuple[LayerShape, ...]:
    present = [layer for layer, _ in list_layers(model)]
    calls = [(row.name, row.call) for row in sorted(rows, key=lambda row: row.order or 0)]
    kept = {call for text in layers for call in pick_calls(parse_pattern(text), present, calls)}
    left = {call for text in exclude for call in pick_calls(parse_pattern(text), present, calls)}
    return tuple(
        row
        for row in rows
        if (not layers or (row.name, row.call) in kept)
        and (row.name, row.call) not in left
        and (depth is None or row.depth <= depth)
    )
