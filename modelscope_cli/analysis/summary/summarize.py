"""`summary` from request to record: on the meta device where that works, else for real."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from torch import Tensor, nn

from modelscope_cli.analysis.gradients.freezing import set_trainable
from modelscope_cli.analysis.summary.shapes import Structure, measure_shapes
from modelscope_cli.hooks.layers import list_layers
from modelscope_cli.hooks.patterns import parse_pattern, pick_calls
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.inputs.batches import open_inputs
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.lean import without_dynamo
from modelscope_cli.models.load import LoadedModel, load_model, load_skeleton
from modelscope_cli.models.request import ModelRequest
from modelscope_cli.records.run import InputInfo, Notice, Run
from modelscope_cli.records.summary import LayerShape, SummaryRecord

# Proposals and anchors depend on the values in the picture, which a tensor without data does not have.
_NEEDS_VALUES = frozenset({"detection"})


@dataclass(frozen=True, slots=True)
class Summarized:
    """A structure with what the record's header needs; `error` is what the forward raised, if it did."""

    loaded: LoadedModel
    given: InputInfo
    structure: Structure
    notes: tuple[str, ...]
    warnings: tuple[Notice, ...]

    @property
    def error(self) -> ForwardError | None:
        return self.structure.error

    def record(self, run: Run) -> SummaryRecord:
        error = self.error
        return SummaryRecord(
            run=run,
            layers=self.structure.layers,
            totals=self.structure.totals,
            uncounted_ops=self.structure.uncounted_ops,
            failed=error.call.label if error and error.call else None,
        )


def summarize(
    request: ModelRequest,
    given: InputRequest,
    *,
    layers: Sequence[str] = (),
    exclude: Sequence[str] = (),
    freeze: Sequence[str] = (),
    depth: int | None = None,
) -> Summarized:
    """Build a model without data and run it; for real, with a warning, where that cannot be.

    Args:
        layers, exclude, depth: which rows are kept; the totals are always of the whole model.
        freeze: patterns of layers whose parameters are not counted as trainable.

    Raises:
        UsageError: a name or pattern that means nothing (exit 2).
        CannotRunError: the model cannot be built at all (exit 4). A forward that raises is no exception here.
    """
    loaded = load_skeleton(request)
    if loaded.device.type == "meta" and loaded.family in _NEEDS_VALUES:
        reason = f"{loaded.family} models decide their shapes from values"
        loaded = _for_real(request, reason)
    summarized = _measure(loaded, given, freeze)
    error = summarized.error
    # torchvision's models all run on meta, so what they raise there is the truth; other code may just need
    # values, which only a second try can tell.
    if error is not None and loaded.device.type == "meta" and loaded.info.source != "zoo":
        loaded = _for_real(request, str(error.__cause__).partition("\n")[0])
        summarized = _measure(loaded, given, freeze)
    rows = _keep(loaded.module, summarized.structure.layers, layers, exclude, depth)
    return replace(summarized, structure=replace(summarized.structure, layers=rows))


def summarize_module(loaded: LoadedModel, given: InputRequest, args: tuple[Tensor, ...] = ()) -> Summarized:
    """Run a module that is there already, with `args` or, without any, with what was asked for."""
    if not args:
        return _measure(loaded, given, ())
    info = InputInfo("tensor", tuple(tuple(tensor.shape) for tensor in args))
    return Summarized(loaded, info, measure_shapes(loaded.module, args), (), ())


def _for_real(request: ModelRequest, reason: str) -> LoadedModel:
    loaded = load_model(replace(request, weights="none", device="cpu"))
    notice = Notice("real_forward", f"run for real on the cpu, not without data: {reason}")
    return replace(loaded, notes=(), warnings=(*loaded.warnings, notice))


def _measure(loaded: LoadedModel, given: InputRequest, freeze: Sequence[str]) -> Summarized:
    set_trainable(loaded.module, freeze)
    # Nothing of the user's own runs under the stand-ins.
    with without_dynamo() if loaded.info.source == "zoo" else nullcontext():
        inputs = open_inputs(
            given,
            family=loaded.family,
            transforms=loaded.transforms,
            module=loaded.module,
            device=loaded.device,
            dtype=loaded.dtype,
        )
        structure = measure_shapes(loaded.module, next(iter(inputs)).args)
    notes = (*loaded.notes, *inputs.notes)
    return Summarized(loaded, inputs.info, structure, notes, (*loaded.warnings, *inputs.warnings))


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
