"""`summary`: the layers of a model with shapes and costs, without data where that works, else for real."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack, cast

from torch import Tensor, nn

from modelscope_cli.analysis.gradients.freezing import flags_kept, set_trainable
from modelscope_cli.analysis.subject import (
    as_patterns,
    describe_module,
    first_of,
    header,
    open_for,
    refuse_idle,
    with_shapes,
)
from modelscope_cli.analysis.summary.measured import about_values, check_measured, with_measured
from modelscope_cli.analysis.summary.shapes import Structure, measure_shapes
from modelscope_cli.hooks.layers import list_layers, not_looked_into
from modelscope_cli.hooks.patterns import parse_pattern, pick_calls
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.inputs.batch import Inputs
from modelscope_cli.inputs.python_inputs import PythonInputs, to_inputs
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.load import LoadedModel, load_model, load_skeleton
from modelscope_cli.models.request import ModelRequest, as_request
from modelscope_cli.records.keywords import Keywords, ModelKeywords, SummaryKeywords, spelled_out
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.run import Notice, invocation
from modelscope_cli.records.summary import LayerShape, SummaryRecord

if TYPE_CHECKING:
    from modelscope_cli.models.request import Model

# Proposals and anchors depend on the values in the picture, which a tensor without data does not have.
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
    weights: str = "none",
    flow: bool = False,
    progress: Progress | None = None,
    **keywords: Unpack[SummaryKeywords],
) -> SummaryRecord:
    """Return the layers of a model with their shapes, parameters and cost in one forward.

    Args:
        model: a name or file as on the command line, built without data; or a module of yours, run where it is.
        inputs, more: what the forward is called with, as elsewhere or as several tensors; None for noise of the
            model's own size. Only the first batch is run.
        depth: layers nested no deeper than this.
        freeze: count these layers' parameters as not trainable.
        layer, exclude: which rows are kept; the totals are always of the whole model.
        measure: what to measure of every call as well: `time`, `zero`, `gradient`; the model then has values.
        flow: record whose output goes where, for `record.graph()` and the page.

    Raises:
        UsageError: a name, keyword or pattern that means nothing (exit 2 on the command line).
        CannotRunError: the model cannot be built, or its forward raised: then `error.record` has the layers up
            to the one that did (exit 4).
    """
    invoked = invocation()
    progress = progress or SILENT
    said = cast(Keywords, keywords)
    given = to_inputs((inputs, *more) if more else inputs, said)
    frozen = as_patterns(freeze)
    if isinstance(model, LoadedModel | nn.Module):
        refuse_idle({**said, "weights": "auto" if weights == "none" else weights})
        check_measured(measure)
        loaded = model if isinstance(model, LoadedModel) else describe_module(model)
        measured = _measure(loaded, given, frozen, flow, progress)
    else:
        model = as_request(model, cast(ModelKeywords, {**said, "weights": weights}))
        check_measured(measure, model)
        seen = _measure_for_real if measure else _measure_named
        measured = seen(model, given, frozen, flow, progress)
    if not isinstance(model, LoadedModel):  # who loaded it has been told
        for note in (*measured.loaded.notes, *not_looked_into(measured.loaded.module)):
            progress.note(note)
    loaded, opened, structure = measured.loaded, measured.inputs, measured.structure
    rows = _keep(loaded.module, structure.layers, as_patterns(layer), as_patterns(exclude), depth)
    warnings = (*loaded.warnings, *opened.warnings, *about_values(loaded, measure))
    for note in opened.notes:
        progress.note(note)
    for warning in warnings:
        progress.warn(warning.message)
    seed = given.request.seed
    error = structure.error
    if measure and error is None:
        rows = with_measured(rows, loaded, given, opened, measure, progress)
    record = SummaryRecord(
        run=header("summary", loaded, opened.info, seed, warnings, invoked),
        layers=rows,
        totals=structure.totals,
        uncounted_ops=structure.uncounted_ops,
        failed=error.call.label if error and error.call else None,
        flow=structure.flow,
    )
    if error is not None:
        error.record = record
        raise error
    return record


@dataclass(frozen=True, slots=True)
class _Measured:
    """A model, what it was run on, and what the run showed."""

    loaded: LoadedModel
    inputs: Inputs
    structure: Structure


def _measure_named(
    request: ModelRequest, given: PythonInputs, freeze: Sequence[str], with_flow: bool, progress: Progress
) -> _Measured:
    """Build a model without data and run it; for real, with a warning, where that cannot be."""
    loaded = load_skeleton(request)
    if loaded.device.type == "meta" and loaded.family in _NEEDS_VALUES:
        loaded = _for_real(request, f"{loaded.family} models decide their shapes from values")
    measured = _measure(loaded, given, freeze, with_flow, progress)
    error = measured.structure.error
    # torchvision's models all run on meta, so what they raise there is the truth; other code may just need
    # values, which only a second try can tell.
    may_need_values = loaded.device.type == "meta" and loaded.info.source != "zoo"
    if error is not None and may_need_values and not _is_about_shapes(error):
        loaded = _for_real(request, str(error.__cause__).partition("\n")[0])
        measured = _measure(loaded, given, freeze, with_flow, progress)
    return measured


def _is_about_shapes(error: ForwardError) -> bool:
    """Tell what a forward raises with values as well, so that nobody has to wait for it twice.

    Where values are missing, torch says so of the meta device; a model's own checks of its input raise one of
    these, and Python a TypeError where an argument is missing.
    """
    cause, text = error.__cause__, str(error.__cause__)
    if isinstance(cause, TypeError):
        return "forward() " in text and "argument" in text
    is_checked = isinstance(cause, RuntimeError | ValueError | AssertionError | IndexError)
    return is_checked and not isinstance(cause, NotImplementedError) and "meta" not in text.lower()


def _for_real(request: ModelRequest, reason: str) -> LoadedModel:
    loaded = load_model(replace(request, weights="none", device="cpu"))
    notice = Notice("real_forward", f"run for real on the cpu, not without data: {reason}")
    return replace(loaded, notes=(), warnings=(*loaded.warnings, notice))


def _measure_for_real(
    request: ModelRequest, given: PythonInputs, freeze: Sequence[str], with_flow: bool, progress: Progress
) -> _Measured:
    """Build a model with values and run it."""
    loaded = load_model(request)
    return _measure(loaded, given, freeze, with_flow, progress)


def _measure(
    loaded: LoadedModel, given: PythonInputs, freeze: Sequence[str], with_flow: bool, progress: Progress
) -> _Measured:
    # Nothing of the user's own runs under the stand-ins.
    with without_dynamo() if loaded.info.source == "zoo" else nullcontext():
        inputs = open_for(given, loaded, SILENT)
        args = first_of(inputs, loaded).args
        loaded = with_shapes(loaded, args, given.request.seed, progress)
        with flags_kept(loaded.module):
            set_trainable(loaded.module, freeze)
            return _Measured(loaded, inputs, measure_shapes(loaded.module, args, with_flow=with_flow))


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
