"""Compare a fingerprint with that of a run here, with another one, or with a file of tensors."""

import math
import shlex
from collections.abc import Iterable
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from modelscope_cli.analysis.comparison.fingerprint import Prints, take_fingerprint
from modelscope_cli.analysis.comparison.request import Patterns, is_input
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.checkpoints.reading import read_contents
from modelscope_cli.checkpoints.tensors import each_with_file, read_values
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.inputs.request import InputRequest
from modelscope_cli.models.request import Model, ModelRequest
from modelscope_cli.records.diff import (
    DiffRecord,
    DiffSide,
    LayerDifference,
    SettingDifference,
    count_up,
    first_divergence,
)
from modelscope_cli.records.keywords import Keywords
from modelscope_cli.records.naming import output_label_of, some
from modelscope_cli.records.progress import SILENT, Progress
from modelscope_cli.records.run import ModelInfo, WeightsInfo, invocation
from modelscope_cli.records.stats import Fingerprint, PrintedOutput, PrintedWeight, StatsRecord
from modelscope_cli.report.reading import is_fingerprint, read_fingerprint

# What the kernels of two machines may make of one layer, in units of roundoff: measured between the widest and the
# plainest of a CPU on 22 architectures with random weights, whose worst layer was at 19.
_ROUNDOFFS = 48
_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_OF_HALF = 4  # products are added up in float32 there, and rounded once
_NEAR = 0.1


def tolerance_at(order: int, dtypes: Iterable[str | None]) -> float:
    """Return the relative L2 that dtype and kernels allow the output of the `order`-th layer, counted from 1.

    The errors of the layers before it add up like those of a random walk, so it grows with the root of how many.
    """
    names = [dtype for dtype in dtypes if dtype in _ROUNDOFF] or ["float32"]
    coarsest = max(names, key=lambda dtype: _ROUNDOFF[dtype])
    factor = _OF_HALF if coarsest in ("float16", "bfloat16") else _ROUNDOFFS
    return factor * _ROUNDOFF[coarsest] * math.sqrt(order)


def compare_prints(
    ours: Iterable[PrintedOutput], theirs: Iterable[PrintedOutput], tolerance: float | None
) -> tuple[LayerDifference, ...]:
    """Compare the outputs of two fingerprints, those of A in order, then those of B alone.

    Args:
        tolerance: on the relative L2; None for what dtype and kernels allow each.
    """
    others = {(one.name, one.call, one.output): one for one in theirs}
    rows = []
    for at, one in enumerate(ours, 1):
        other = others.pop((one.name, one.call, one.output), None)
        rows.append(_row(one, other, tolerance, at))
    return (*rows, *(_row(None, other, tolerance, 1) for other in others.values()))


def _row(
    a: PrintedOutput | None, b: PrintedOutput | None, tolerance: float | None, at: int
) -> LayerDifference:
    one = a or b
    assert one is not None
    row = LayerDifference(
        name=one.name,
        status="removed" if b is None else "added" if a is None else "reshaped",
        type=one.type,
        order=one.order,
        call=one.call,
        output=one.output,
        shape=a.shape if a else None,
        b_shape=b.shape if b else None,
        dtype=a.dtype if a else None,
        b_dtype=b.dtype if b else None,
    )
    if a is None or b is None:
        return row
    if a.numel != b.numel:
        return replace(
            row, problem=f"{a.numel} values in A and {b.numel} in B" if a.shape == b.shape else None
        )
    distance = distance_of(a, b)
    allowed = tolerance_at(at, (a.dtype, b.dtype)) if tolerance is None else tolerance
    is_far = distance > allowed or a.nonfinite != b.nonfinite
    return replace(
        row,
        status="changed" if is_far else "same",
        rel_l2=distance,
        sqnr_db=-20 * math.log10(distance) if 0 < distance < math.inf else None,
        nonfinite=abs(a.nonfinite - b.nonfinite),
    )


def distance_of(a: PrintedOutput | PrintedWeight, b: PrintedOutput | PrintedWeight) -> float:
    """Return the relative L2 that the projections tell, to within a tenth or so."""
    apart = float(np.linalg.norm(np.subtract(a.projections, b.projections)))
    return apart / a.norm if a.norm else math.inf if apart else 0.0


def differing_settings(a: StatsRecord, b: StatsRecord) -> tuple[SettingDifference, ...]:
    """Return what differs between two runs apart from the values, weights first."""
    ours, theirs = a.fingerprint, b.fingerprint
    assert ours is not None
    assert theirs is not None
    pairs = [
        ("mode", a.mode, b.mode),
        ("dtype", a.run.dtype, b.run.dtype),
        ("images", str(a.images), str(b.images)),
    ]
    pairs += [("model", a.run.model.class_name, b.run.model.class_name)]
    names = dict.fromkeys((*ours.settings, *theirs.settings))
    pairs += [(name, ours.settings.get(name, ""), theirs.settings.get(name, "")) for name in names]
    pairs += [(name, str(a.run.versions.get(name)), str(version)) for name, version in b.run.versions.items()]
    settings = tuple(
        SettingDifference(name, one or "-", other or "-") for name, one, other in pairs if one != other
    )
    return (*differing_weights(a, b, settings), *settings)


def differing_weights(
    a: StatsRecord, b: StatsRecord, others: Iterable[SettingDifference]
) -> tuple[SettingDifference, ...]:
    """Return the tensors whose bits differ.

    The seeded random weights of another kind of machine may differ in their last bits; that is not a difference.
    """
    ours, theirs = (one.fingerprint.weights if one.fingerprint else {} for one in (a, b))
    if (a.run.model.source == "onnx") != (b.run.model.source == "onnx"):
        return ()  # their tensors have other names, and norms are folded into other layers
    is_random = a.run.model.weights.resolved == b.run.model.weights.resolved == "random"
    is_elsewhere = any(one.name in ("kernels of the CPU", "machine", "torch") for one in others)
    apart = {
        name: distance_of(ours[name], theirs[name])
        for name in ours
        if name in theirs and ours[name].sha256 != theirs[name].sha256
    }
    if is_random and is_elsewhere:
        apart = {name: far for name, far in apart.items() if far > tolerance_at(1, ())}
    missing = [name for name in ours if name not in theirs], [name for name in theirs if name not in ours]
    if not apart and not any(missing):
        return ()
    texts = [f"{name} (relative L2 {far:.2g})" for name, far in apart.items()]
    texts += [f"{name} (only A)" for name in missing[0]] + [f"{name} (only B)" for name in missing[1]]
    return (SettingDifference("weights", f"{len(ours)} tensors", f"differ in {len(texts)}: {some(texts)}"),)


def read_tensors(path: Path, layers: Iterable[PrintedOutput]) -> tuple[tuple[PrintedOutput, ...], str]:
    """Return the tensors of a .npz or .safetensors file as outputs of the layers they belong to, and how that went.

    By name: that of the layer, `relu#1` for its second call, `/` for `.`, a `:0` at the end left out. A tensor of
    another name belongs to the nearest layer of its size, if that is within a relative L2 of 0.1, and of equally
    near ones to the first. One of four dimensions may have its channels last.
    """
    layers = tuple(layers)
    labels = {_plain_name(_label(one)): one for one in layers}
    outputs: dict[str, PrintedOutput] = {}
    rest: dict[str, list[PrintedOutput]] = {}
    entries = [entry for entry in read_contents(path).tensors if entry.special is None]
    for entry, file in each_with_file(entries):
        values = read_values(entry, file)
        layer = labels.get(_plain_name(entry.name))
        prints = [_printed(values)]
        if values.ndim == 4 and (
            layer is None or layer.shape[1:] != tuple(values.shape[1:])
        ):  # channels last
            prints.append(_printed(values.permute(0, 3, 1, 2)))
        if layer is None:
            rest[entry.name] = prints
        else:
            alike = [one for one in prints if one.shape[1:] == layer.shape[1:]]
            outputs[_label(layer)] = _as(layer, (*alike, *prints)[0])
    n_named, unknown = len(outputs), []
    for name, prints in rest.items():
        near = sorted(
            (distance_of(one, printed), at, which)
            for at, one in enumerate(layers)
            for which, printed in enumerate(prints)
            if one.numel == printed.numel and _label(one) not in outputs
        )
        if near and near[0][0] < _NEAR:
            layer = layers[near[0][1]]
            outputs[_label(layer)] = _as(layer, prints[near[0][2]])
        else:
            unknown.append(name)
    if not outputs:
        message = f"no tensor of '{path}' matches a layer of the fingerprint by name or by value"
        raise CannotRunError(message, f"use the names of its layers: {some([_label(one) for one in layers])}")
    note = f"{n_named} tensors by name, {len(outputs) - n_named} by size and value"
    note += f"; {len(unknown)} of no layer: {some(unknown)}" if unknown else ""
    return tuple(outputs.values()), note


def _printed(values: Tensor) -> PrintedOutput:
    prints = Prints(Selection())
    prints.add(("", 0, ""), values)
    return prints.printed()[0]


def _as(layer: PrintedOutput, printed: PrintedOutput) -> PrintedOutput:
    return replace(
        printed, name=layer.name, type=layer.type, order=layer.order, call=layer.call, output=layer.output
    )


def _label(one: PrintedOutput) -> str:
    return output_label_of(one) if one.name else "output"


def _plain_name(name: str) -> str:
    return name.strip("/").removesuffix(":0").replace("/", ".").lower()


def compare_fingerprint(
    path: str,
    b: "Model | None",
    inputs: Any,
    keywords: Keywords,
    *,
    tolerance: float | None = None,
    layer: Patterns = (),
    exclude: Patterns = (),
    mode: str = "auto",
    progress: Progress | None = None,
) -> DiffRecord:
    """Compare the fingerprint in a file with another one, with a file of tensors, or with a model run here."""
    ours = read_fingerprint(path)
    assert ours.fingerprint is not None
    progress = progress or SILENT
    b_name = b.model if isinstance(b, ModelRequest) else fspath(b) if isinstance(b, str | PathLike) else None
    if b is None or (b_name is not None and not is_fingerprint(b_name) and is_input(b_name)):
        raise UsageError(
            f"no model is given to compare the fingerprint '{path}' with", _usual_line(path, ours)
        )
    settings: tuple[SettingDifference, ...] = ()
    others: tuple[PrintedOutput, ...]
    input_info = ours.run.input
    if b_name is not None and is_fingerprint(b_name):
        theirs = read_fingerprint(b_name)
    elif (
        b_name is not None
        and Path(b_name).suffix.lower() in (".npz", ".safetensors")
        and not _has_input(inputs)
    ):
        theirs = None
        others, note = read_tensors(Path(b_name), ours.fingerprint.layers)
        progress.note(f"tensors: {note}")
    else:
        theirs = _run_here(b, inputs, keywords, ours, layer, exclude, mode, progress, path)
    if theirs is not None:
        assert theirs.fingerprint is not None
        others = (*_as_inputs(theirs.fingerprint), *theirs.fingerprint.layers)
        settings, input_info = differing_settings(ours, theirs), theirs.run.input
        run = theirs.run
        side = DiffSide(run.model, run.device, run.dtype, run.seed, theirs.mode)
    else:
        info = ModelInfo("file", str(b_name), "", WeightsInfo(str(b_name), Path(str(b_name)).name, "file"))
        side = DiffSide(
            info, "unknown", ", ".join(sorted({one.dtype for one in others})), ours.run.seed, None
        )
    mine = (*_as_inputs(ours.fingerprint), *ours.fingerprint.layers) if theirs else ours.fingerprint.layers
    names = {(one.name, one.call, one.output) for one in others}
    if layer or exclude:
        mine = tuple(one for one in mine if (one.name, one.call, one.output) in names)
    rows = compare_prints(mine, others, tolerance)
    is_partial = theirs is None or (theirs.run.model.source == "onnx") != (ours.run.model.source == "onnx")
    unseen = [row for row in rows if row.status == "removed"] if is_partial else []
    if unseen:  # a runtime need not have written every layer, and an exporter folds some into others
        note = f"not compared: {len(unseen)} layers that are only in the fingerprint, "
        progress.note(note + some(row.label for row in unseen))
        rows = tuple(row for row in rows if row.status != "removed")
    dtypes = [dtype for row in rows for dtype in (row.dtype, row.b_dtype)]
    reason = "depends on the dtype and the number of layers before; shown for the last layer"
    ran = invocation()
    header = replace(ours.run, command="diff", argv=ran.argv, input=input_info, elapsed_ms=ran.elapsed_ms)
    return DiffRecord(
        run=header,
        b=side,
        mode=ours.mode,
        tolerance=tolerance_at(len(rows), dtypes) if tolerance is None else tolerance,
        tolerance_reason=reason if tolerance is None else "asked for",
        first_divergence=first_divergence(rows),
        totals=count_up(rows),
        images=ours.images,
        layers=rows,
        settings=settings,
    )


def _as_inputs(fingerprint: Fingerprint) -> tuple[PrintedOutput, ...]:
    return tuple(replace(one, name="input", call=0) for one in fingerprint.inputs)


def _run_here(
    b: Any,
    inputs: Any,
    keywords: Keywords,
    ours: StatsRecord,
    layer: Patterns,
    exclude: Patterns,
    mode: str,
    progress: Progress,
    path: str,
) -> StatsRecord:
    """Take the fingerprint of the model on the input, in the mode of the other one unless another is given."""
    was_noise = ours.run.input is not None and ours.run.input.source == "noise"
    if not _has_input(inputs) and not was_noise:
        message = f"the fingerprint '{path}' was made from an input, but none is given"
        raise UsageError(message, _usual_line(path, ours, b))
    mode = ours.mode if mode == "auto" else mode
    subject = Subject("diff", b, inputs, keywords, progress=progress)
    subject.open(is_training=mode == "train")
    selection = subject.select(layer, exclude)
    if not layer and not exclude:
        assert ours.fingerprint is not None
        calls = frozenset((one.name, one.call) for one in ours.fingerprint.layers if one.name)
        selection = Selection(names=frozenset(name for name, _ in calls), wanted=calls)
    printed = take_fingerprint(subject.loaded, subject.inputs, selection, is_training=mode == "train")
    return StatsRecord(
        run=subject.run(),
        layers=(),
        images=subject.inputs.n_images,
        near_zero=ours.near_zero,
        mode="train" if mode == "train" else "eval",
        fingerprint=printed,
    )


def _has_input(inputs: Any) -> bool:
    if isinstance(inputs, InputRequest):
        return bool(inputs.files or inputs.shapes or inputs.named)
    return inputs is not None


def _usual_line(path: str, ours: StatsRecord, b: Any = None) -> str:
    files = ours.run.input.files[:1] if ours.run.input else ()
    name = b.model if isinstance(b, ModelRequest) else b if isinstance(b, str) else ours.run.model.name
    return shlex.join(["modelscope", "diff", path, name, *files])
