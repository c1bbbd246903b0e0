"""Comparison of two ONNX files by what they compute, whatever their nodes and tensors are called."""

from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from modelscope_cli.analysis.comparison.compare import ModelComparison
from modelscope_cli.analysis.comparison.request import Patterns, Source, WeightsFile
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.python_inputs import PythonInputs, to_inputs
from modelscope_cli.models.check_request import check_request
from modelscope_cli.models.request import ModelRequest, is_onnx
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.diff import Cause, DiffRecord, LayerDifference, count_up, first_divergence
from modelscope_cli.records.progress import SILENT

Modes = tuple[str, str]
_CHANGED = "changed", "reshaped", "retyped"  # names such as `onnx::Conv_33` are numbers, not of one tensor


def _path(side: Source) -> Path | None:
    """Return the ONNX file that a side is; None for another."""
    path = str(getattr(side, "path", getattr(side, "model", "")))
    return Path(path) if is_onnx(path) else None


def compare_weights(comparison: ModelComparison, layer: Patterns, exclude: Patterns) -> DiffRecord:
    """Compare the tensors; where only the structure of two ONNX files differs, what they compute for noise."""
    paths = [*map(_path, comparison.sources)]
    record = None
    can_run = all(paths) and not (layer or exclude)
    with suppress(CannotRunError) if can_run else nullcontext():  # no tensor is in both
        record = comparison.of_weights(layer, exclude)
        changed = [row for row in record.tensors or () if row.status in _CHANGED and "::" not in row.name]
        if record.is_same or changed or not can_run:
            return record
    a, b = (check_request(ModelRequest(str(path))) for path in paths)
    running = replace(comparison, sources=(a, b))
    try:
        return compare_outputs(running, to_inputs(None, {}), ("eval", "eval"), (), ())
    except (CannotRunError, UsageError) as error:
        if record is None:
            raise
        problem = f"what they compute was not compared: {in_one_line(error.message, 200)}"
        return replace(record, causes=(*record.causes, Cause("not_run", None, problem, error.hint or "")))


def compare_outputs(
    comparison: ModelComparison, inputs: PythonInputs, modes: Modes, layer: Patterns, exclude: Patterns
) -> DiffRecord:
    """Run both on the same input; what differs of the weights and operators of two ONNX files is the cause.

    Where their outputs are the same, a value inside that is not in both is not a difference of what they compute.
    """
    a, b = ("train" if mode == "train" else "eval" for mode in modes)
    record = comparison.run(inputs, (a, b), layer, exclude)
    files = [WeightsFile(path) for path in map(_path, comparison.sources) if path]
    if len(files) < 2:
        return record
    rows = record.layers or ()
    if is_same := {row.status for row in rows if not row.name} == {"same"}:
        rows = tuple(map(_without_part, rows))
    causes = record.causes
    with suppress(CannotRunError):  # no tensor is in both
        stored = replace(comparison, sources=(files[0], files[1]), progress=SILENT, tolerance=None)
        causes += tuple(one for one in stored.of_weights().causes if one.kind != "quantised")
    causes = tuple(one for one in causes if one.kind == "operator" or not is_same)
    diverging = first_divergence(rows)
    return replace(record, layers=rows, totals=count_up(rows), first_divergence=diverging, causes=causes)


def _without_part(row: LayerDifference) -> LayerDifference:
    is_inside = row.status in _CHANGED
    return replace(row, status="not tested", matched="differs, the output does not") if is_inside else row
