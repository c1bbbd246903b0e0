"""Comparison of two sides: their weights, or the outputs of their layers on the same input."""

import math
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.comparison.activations import Activations, Side, diff_activations
from modelscope_cli.analysis.comparison.causes import find_causes
from modelscope_cli.analysis.comparison.distance import sum_up, to_distance, traits
from modelscope_cli.analysis.comparison.evidence import alone_different, within_rounding
from modelscope_cli.analysis.comparison.folding import EXPORT_AGAIN, StoredFold, find_folds
from modelscope_cli.analysis.comparison.matching import Key
from modelscope_cli.analysis.comparison.moved import CODES, FAR, by_value
from modelscope_cli.analysis.comparison.operators import compare_operators, weights_alone
from modelscope_cli.analysis.comparison.precision import precision_causes
from modelscope_cli.analysis.comparison.predictions import Predictions
from modelscope_cli.analysis.comparison.programs import LayersInOrder, program_of
from modelscope_cli.analysis.comparison.relation import relations, roundings_of
from modelscope_cli.analysis.comparison.request import HALF, Patterns, Source, choose_tolerance, refuse_given
from modelscope_cli.analysis.comparison.sides import (
    as_b_takes,
    describe,
    is_quantised,
    load_both,
    open_weights,
)
from modelscope_cli.analysis.subject import by_image, first_of, open_for, tell_of_images
from modelscope_cli.analysis.weights.weights import select_names
from modelscope_cli.errors import CannotRunError, refuse_failed_device
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.python_inputs import PythonInputs
from modelscope_cli.models.loaded import LoadedModel
from modelscope_cli.plain_text import in_one_line
from modelscope_cli.records.diff import (
    BY_VALUE,
    FOLDING,
    Cause,
    DiffRecord,
    DiffSide,
    LayerDifference,
    Renaming,
    TensorDifference,
    count_up,
    first_divergence,
)
from modelscope_cli.records.keywords import as_tuple
from modelscope_cli.records.naming import counted, dtype_name, layer_of, some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Arguments, InputInfo, Invocation, Notice, Run

_MOST_RENAMINGS = 8
_MOST_CAUSES = 5  # of tensors; the rows have all


def pair_names(
    a: Mapping[str, Tensor], b: Mapping[str, Tensor]
) -> tuple[dict[str, str], tuple[Renaming, ...]]:
    """Return `{name in A: name in B}` of matching tensors, and the prefixes that were replaced.

    First match equal names; then names that a replaced prefix makes equal, as long as it matches most of the rest;
    then tensors with the same type, shape and values as exactly one tensor of the other side; last, tensors of two
    layers of which these match others, such as the weight of a batch norm, which may be all ones in every layer.
    """
    pairs = {name: name for name in a if name in b}
    rest_a, rest_b = _without(a, pairs), _without(b, pairs.values())
    renamings: list[Renaming] = []
    while len(renamings) < _MOST_RENAMINGS and (best := _best_prefixes(rest_a, rest_b)) is not None:
        prefix, b_prefix = best
        names = {name: b_prefix + name.removeprefix(prefix) for name in rest_a if name.startswith(prefix)}
        renamed = {name: other for name, other in names.items() if other in rest_b}
        pairs.update(renamed)
        renamings.append(Renaming(prefix, b_prefix, len(renamed)))
        rest_a, rest_b = _without(rest_a, renamed), _without(rest_b, renamed.values())
    pairs |= _of_one_value(rest_a, rest_b)
    layers = _layers_of(pairs)
    for name, tensor in _without(rest_a, pairs).items():
        layer, dot, last = name.rpartition(".")
        other = f"{layers.get(layer, '')}{dot}{last}"
        if layer in layers and other in rest_b and rest_b[other].shape == tensor.shape:
            pairs[name] = other
    return pairs, tuple(renamings)


def _without(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    excluded = set(names)
    return {name: tensor for name, tensor in tensors.items() if name not in excluded}


def _best_prefixes(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> tuple[str, str] | None:
    """Return the prefixes by which most tensors of equal shape differ, or that of a wrapper; None if few do."""
    starts = (os.path.commonprefix([*names]) for names in (a, b))  # noqa: RUF071 -- of names, not of paths
    prefix, b_prefix = (one[: one.rfind(".") + 1] for one in starts)
    alike = {x.removeprefix(prefix) for x in a} & {x.removeprefix(b_prefix) for x in b}
    is_wrapped = prefix != b_prefix and (prefix.endswith(b_prefix) or b_prefix.endswith(prefix))
    if alike and is_wrapped and 2 * len(alike) >= min(len(a), len(b)):
        return prefix, b_prefix
    groups: dict[Any, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for side, tensors in enumerate((a, b)):
        for name, tensor in tensors.items():
            groups[tensor.shape, name.rpartition(".")[2]][side].append(name)
    votes = Counter(
        _differing_prefixes(name, other)
        for names, others in groups.values()
        for name in names
        for other in others
    )
    if not votes:
        return None
    best = max(votes, key=lambda pair: (votes[pair], -len(pair[0]) - len(pair[1])))
    return best if 2 * votes[best] >= min(len(a), len(b)) else None


def _differing_prefixes(name: str, other: str) -> tuple[str, str]:
    """Remove the longest common suffix, in whole parts: `a.b.c`, `x.c` become `a.b.`, `x.`."""
    parts, others = name.split("."), other.split(".")
    while parts and others and parts[-1] == others[-1]:
        parts.pop()
        others.pop()
    return "".join(f"{part}." for part in parts), "".join(f"{part}." for part in others)


def _of_one_value(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, str]:
    """Return `{name in A: name in B}` of the tensors that equal exactly one tensor of the other side."""
    ours, theirs = by_value(a), by_value(b)
    alike = ((names, theirs.get(value, ())) for value, names in ours.items())
    return {names[0]: others[0] for names, others in alike if len(names) == len(others) == 1}


def _layers_of(pairs: Mapping[str, str]) -> dict[str, str]:
    """Return `{layer of A: layer of B}` of paired tensors."""
    return {name.rpartition(".")[0]: other.rpartition(".")[0] for name, other in pairs.items()}


@dataclass(frozen=True, slots=True)
class ModelComparison:
    """Two sides, and the settings of their comparison."""

    sources: tuple[Source, Source]
    seeds: tuple[int, int]
    tolerance: float | None
    progress: Progress
    invoked: Invocation

    def of_weights(self, layer: Patterns = (), exclude: Patterns = ()) -> DiffRecord:
        """Compare two state dicts, each of a checkpoint or a model.

        Args:
            layer, exclude: which rows are kept, as for `weights`: a name of a tensor, the beginning of one, a glob.
        """
        (a, ours, a_warnings), (b, theirs, b_warnings) = map(
            open_weights, self.sources, self.seeds, (self.progress, self.progress)
        )
        tolerance, reason = choose_tolerance(self.tolerance, None)
        if is_exported := b.model.name.lower().endswith(".onnx"):
            ours, theirs = weights_alone(ours, theirs)
        rows, renamings, causes = diff_tensors(
            ours,
            theirs,
            tolerance,
            is_exported=is_exported,
            track=lambda names, total: self.progress.track(names, "tensors", total),
        )
        if not any(row.status not in ("added", "removed") for row in rows):
            names = f"'{a.model.name}' and '{b.model.name}'"
            message = f"{names} have no tensor in common, by name or by value: there is nothing to compare"
            sides = ["NET_A", "NET_B", "-c", a.model.name, "--b-checkpoint", b.model.name]
            sides = ["NET", b.model.name, "-c", a.model.name] if is_exported else sides
            nets = shlex.join(sides) if a.model.source == b.model.source == "file" else "..."
            raise CannotRunError(message, f"modelscope diff {nets} IMAGE   compares their outputs")
        every = {name for row in rows for name in (row.name, row.b_name) if name}
        kept = select_names(every, as_tuple(layer))
        left_out = select_names(every, as_tuple(exclude)) if exclude else set()
        rows = tuple(row for row in rows if {row.name, row.b_name} & kept and row.name not in left_out)
        if codes := [name for name, one in theirs.items() if is_exported and one.dtype in CODES]:
            what = f"B is quantised: {counted(len(codes), 'tensor')} of integers in it were not compared"
            causes = (Cause("quantised", None, what, "give images to compare their outputs"), *causes)
        if not causes and any(row.status not in ("same", "renamed", "folded") for row in rows):
            causes = tuple(relations(rows, ours, theirs))
        n_operators, difference = compare_operators([Path(side.model.name) for side in (a, b)])
        if difference is not None:
            words = shlex.join(("modelscope", "diff", a.model.name, b.model.name))
            hint = f"{words} IMAGE   compares what they compute"
            causes = (Cause("operator", None, difference, hint * (not is_exported)), *causes)
        return DiffRecord(
            run=self._header(a, None, (*a_warnings, *b_warnings)),
            b=b,
            mode=None,
            tolerance=tolerance,
            tolerance_reason=reason,
            first_divergence=first_divergence(rows),
            totals=count_up(rows),
            renamings=renamings,
            tensors=rows,
            causes=causes[:_MOST_CAUSES],
            operators=n_operators,
        )

    def run(
        self, python_inputs: PythonInputs, modes: tuple[str, str], layer: Patterns, exclude: Patterns
    ) -> DiffRecord:
        """Run both sides on the same input and compare the outputs of their layers."""
        loaded = load_both(*self.sources, self.progress)
        program = program_of(loaded[1].module)
        if program is not None and modes[1] == "train":
            refuse_given({"--b-mode": "train"}, "needs layers, and B is run as a whole", "")
        plain = replace(loaded[0], device=torch.device("cpu"), dtype=torch.float32)  # each side converts it
        inputs = open_for(as_b_takes(python_inputs, *loaded, self.progress), plain, self.progress)
        side_a = Side("A", loaded[0], is_training=modes[0] == "train", seed=self.seeds[0])
        side_b = Side("B", loaded[1], is_training=modes[1] == "train", seed=self.seeds[1], program=program)
        first = first_of(inputs, loaded[0]).args
        a, b = map(describe, loaded, self.seeds, modes)
        params = [{(name, one.shape) for name, one in model.module.named_parameters()} for model in loaded]
        n_alike, n_most = len(params[0] & params[1]), max(map(len, params))
        is_other = 10 * n_alike < 6 * n_most and not (program or layer or exclude)
        shapes = [Counter(one.shape for one in model.module.parameters()) for model in loaded]
        is_renamed = is_other and 10 * (shapes[0] & shapes[1]).total() >= 9 * max(map(Counter.total, shapes))
        if is_renamed:
            twins = _layers_of(_of_one_value(*(model.module.state_dict() for model in loaded)))
            side_b = replace(side_b, program=LayersInOrder(loaded[1].module, side_b.seed, twins))
        is_whole_only = is_other and not is_renamed
        are_quantised = any(is_quantised(model.module) for model in loaded)
        has_states = program is None and not (is_whole_only or are_quantised)
        told, rounded = _of_states(*loaded, sources=self.sources) if has_states else ((), None)
        tolerance, reason = choose_tolerance(
            self.tolerance,
            dtypes := [*(dtype_name(model.dtype) for model in loaded), *([rounded] if rounded else [])],
            n_layers=(n_layers := _size(loaded[0].module)[0]),
            has_other_kernels=program is not None
            or is_other
            or loaded[1].info.class_name == "ExportedProgram",
            is_quantised=are_quantised,
        )
        predictions = Predictions(loaded[0].categories, loaded[1].categories, inputs.files)
        diff = diff_activations(
            side_a,
            side_b,
            inputs,
            tolerance,
            layers=as_tuple(layer),
            exclude=as_tuple(exclude),
            is_whole_only=is_whole_only,
            see=predictions.add,
            track=lambda batches: by_image(self.progress, batches, "activations", inputs.n_listed),
        )
        if is_whole_only and diff.rows[0].status == "reshaped":
            _refuse_outputs(diff.rows[0], loaded[1], python_inputs.request.files)
        is_a_whole = program_of(loaded[0].module) is not None  # whose layers cannot run one by one
        is_judged = program is not None and self.tolerance is None and not is_a_whole
        diff, values = _with_rounding(diff, side_a, side_b, first, tolerance) if is_judged else (diff, {})
        causes: tuple[Cause, ...] = ()  # differences from a requested mode or quantisation need none
        is_meant = is_a_whole or (program is None and (is_whole_only or a.mode != b.mode or are_quantised))
        if program is None and loaded[0].dtype != loaded[1].dtype and not is_meant:
            causes = tuple(precision_causes(side_a, side_b, diff.rows, first, tolerance))
        elif not is_meant:
            found = find_causes(side_a, side_b, diff.examined, diff.matching, first, tolerance, values)
            causes = (*told, *(one for one in found if not told or one.kind not in ("weights", "cast")))
        rows = diff.rows if is_whole_only else _with_own(diff, side_a, side_b, first_of(inputs, loaded[0]))
        causes = _of_settings(causes, rows, a, b)
        rounded = next((one for one in HALF[::-1] if one in dtypes and self.tolerance is None), None)
        if rounded and not causes and any(row.status == "changed" for row in rows):
            causes = (_of_rounding(rows, rounded, tolerance, tolerance / math.sqrt(n_layers)),)
        warnings = (*loaded[0].warnings, *loaded[1].warnings, *tell_of_images(inputs, self.progress))
        are_images = predictions.n_images > 0 and inputs.info.source == "image"
        if are_images and not any(one.kind == "class_order" for one in causes):
            causes = (*predictions.other_order(), *causes)
        rule = program.rule if program else LayersInOrder.rule if is_renamed else None
        if program and diff.matching and (n := diff.matching.by_value):
            rule = BY_VALUE if is_a_whole else f"{BY_VALUE}: B has no module names ({n} layers)"
        return DiffRecord(
            run=self._header(a, inputs.info, warnings),
            b=b,
            mode=a.mode,
            tolerance=tolerance,
            tolerance_reason=reason,
            first_divergence=first_divergence(diff.rows),
            totals=count_up(diff.rows),
            images=inputs.n_images,
            layers=rows,
            rounded=rounded,
            causes=causes,
            matched_by=rule,
            labels_changed=len(predictions.changed) if are_images else None,
            changed_predictions=tuple(predictions.changed) if are_images else (),
            ties=predictions.ties if are_images else 0,
            accuracy=predictions.accuracy() if all(one.kind != "class_order" for one in causes) else None,
            sizes=tuple(_size(model.module) for model in loaded) if is_whole_only else (),
        )

    def _header(self, a: DiffSide, input_info: InputInfo | None, warnings: tuple[Notice, ...]) -> Run:
        """Return the header, which describes A."""
        return Run.of(
            "diff",
            a.model,
            input_info,
            device=a.device,
            dtype=a.dtype,
            seed=a.seed,
            warnings=dict.fromkeys(warnings),
            invoked=self.invoked,
        )


def _with_rounding(
    diff: Activations, a: Side, b: Side, args: Arguments, tolerance: float
) -> tuple[Activations, dict[Key, Tensor]]:
    """Mark differences within A's own rounding, not of the layer alone, as the same; return B's values there."""
    changed = {row.key: row for row in diff.examined if row.status == "changed" and row.differing is not None}
    own = within_rounding(a, changed, args) if changed else {}
    if not own or b.program is None or diff.matching is None:
        return diff, {}
    values = {one.key: one.tensor.clone() for one in diff.matching.stream(b.program, b.place, args)}
    for key in alone_different(a, values, own.keys(), args, tolerance):
        del own[key]

    def judged(row: LayerDifference) -> LayerDifference:
        return replace(row, status="same", rounding=own[row.key]) if row.key in own else row

    rows, examined = (tuple(map(judged, some)) for some in (diff.rows, diff.examined))
    return replace(diff, rows=rows, examined=examined), values


def _refuse_outputs(row: LayerDifference, b: LoadedModel, files: Sequence[str]) -> NoReturn:
    sizes = [(shape or ())[1:] for shape in (row.shape, row.b_shape)]
    ours, theirs = ("x".join(map(str, size)) + " classes" * (len(size) == 1) for size in sizes)
    weights = ("-c", b.info.weights.requested) if b.info.weights.origin == "checkpoint" else ()
    hint = shlex.join(("modelscope", "predict", b.info.name, *files, *weights)) + "   shows what B predicts"
    raise CannotRunError(f"A has {ours} and B {theirs}: the outputs cannot be compared", hint)


def _with_own(diff: Activations, a: Side, b: Side, batch: Batch) -> tuple[LayerDifference, ...]:
    """Return the rows with what each layer adds itself: A goes on with B's value after every layer."""
    is_a_whole = program_of(a.loaded.module) is not None
    if is_a_whole or all((row.rel_l2 or 1.0) <= FOLDING for row in diff.rows if row.differing):
        return diff.rows
    alone = diff_activations(a, b, [batch], 0.0, is_forced=True).examined
    own = {row.key: math.inf if row.nonfinite else row.rel_l2 for row in alone if row.differing and row.name}
    return tuple(replace(row, own_l2=own.get(row.key)) for row in diff.rows)


def _of_settings(
    causes: tuple[Cause, ...], rows: Sequence[LayerDifference], a: DiffSide, b: DiffSide
) -> tuple[Cause, ...]:
    """Return the causes, or what explains them: that A has random weights, or which layers one side trains."""
    is_exported = b.model.class_name in ("OnnxNet", "ExportedProgram")
    if b.model.class_name == "OnnxNet" and "quantised" in b.dtype:
        untested = [x for x in rows if x.status == "not tested" and "folded" not in (x.matched or "")]
        also = f" and {counted(len(untested), 'layer')}" * bool(untested)
        text = f"B is quantised: its integer weights{also} were not compared"
        hint = "modelscope diff MODEL FLOAT.onnx IMAGE   compares the export before quantisation"
        causes = (*(one for one in causes if one.kind != "other_model"), Cause("quantised", None, text, hint))
    if is_exported and a.model.weights.resolved == "random" and any(one.kind == "weights" for one in causes):
        return (Cause("random_weights", None, "A has random weights", "-c FILE   loads those of B's export"),)
    own = [row for row in rows if (row.own_l2 or 0.0) > FOLDING and re.search("BatchNorm|Drop", row.type)]
    if a.mode == b.mode or not own:
        return causes
    changed = some(f"{row.label} ({row.type})" for row in own)
    text = f"{'A' if a.mode == 'train' else 'B'} is in training mode, which changes {changed}"
    return (Cause("training_mode", None, text, ""),)


def _of_rounding(rows: Sequence[LayerDifference], dtype: str, whole: float, of_one: float) -> Cause:
    """Return whether the rounding of each layer explains a difference that has no other cause."""
    message = f"more than rounding to {dtype} explains (relative L2 {whole:.2g}, {of_one:.2g} for one layer)"
    if max(row.own_l2 or 0.0 for row in rows) <= of_one:
        message = f"each layer is within the rounding of {dtype} ({of_one:.2g}), but the model amplifies it"
    return Cause("rounding", None, message, "")


def _of_states(*models: LoadedModel, sources: Sequence[Source]) -> tuple[tuple[Cause, ...], str | None]:
    """Return what became of the weights of A in B, and the dtype to which all of them are rounded there."""
    a, b = (
        {name: one for name, one in model.module.state_dict().items() if isinstance(one, Tensor)}
        for model in models
    )
    rows = diff_tensors(a, b)[0]
    changed = [row for row in rows if row.status not in ("same", "renamed")]
    if not changed or models[0].dtype != models[1].dtype:
        return (), None
    causes = tuple(relations(rows, a, b))[:_MOST_CAUSES]
    files = [one.info.weights.resolved for one in models]
    if causes and all(map(os.path.isfile, files)):
        keys = zip(("--key", "--b-key"), (getattr(one, "key", None) for one in sources), strict=True)
        options = [word for name, key in keys if key for word in (name, key)]
        line = f"{shlex.join(('modelscope', 'diff', *files, *options))}   compares every tensor"
        causes = (*causes[:-1], replace(causes[-1], hint=causes[-1].hint or line))
    rounded = roundings_of(changed, a, b)
    kinds = {rounded.get(row.name, "").partition("rounded to ")[2] for row in changed}
    return causes, next((one for one in HALF if kinds == {f"{one} in B"}), None)


def _size(module: nn.Module) -> tuple[int, int]:
    n_layers = sum(not any(one.children()) for one in module.modules())
    return n_layers, sum(one.numel() for one in module.parameters())


def diff_tensors(
    a: Mapping[str, Tensor],
    b: Mapping[str, Tensor],
    tolerance: float = 0.0,
    *,
    is_exported: bool = False,
    track: Callable[[Iterable[str], int], Iterator[str]] = lambda names, total: iter(names),
) -> tuple[tuple[TensorDifference, ...], tuple[Renaming, ...], tuple[Cause, ...]]:
    """Compare two state dicts, one tensor at a time, so that mapped files stay out of memory.

    Args:
        tolerance: on the relative L2; 0 detects every changed bit.
        is_exported: whether B is a file of an exporter, which leaves out biases of zeros.
        track: wraps the iteration to show its progress.

    Returns:
        the rows, those of A in its order, then those of B alone; the replaced prefixes; and where convolutions that
        have their norm folded in differ in B.
    """
    pairs, renamings = pair_names(a, b)
    folds = [*find_folds(a, b, pairs)]
    folded = {row.name: row for found in folds for row in _rows_of_fold(found, a, b, tolerance)}
    # Of layers that both sides have, and one of them with a bias
    biases = {f"{layer_of(one)}.bias" for pair in pairs.items() for one in pair if one.endswith(".weight")}
    pairs = {name: other for name, other in pairs.items() if name not in folded}
    rest = {name: one for name, one in a.items() if name not in pairs and name not in folded}
    once = by_value(b) if is_exported and rest else {}  # an exporter stores tensors of equal values once
    once |= by_value({name: one.T for name, one in b.items() if one.ndim == 2}) if once else {}
    shared = {name: once[key][0] for key, names in by_value(rest).items() if key in once for name in names}
    paired = {*pairs.values(), *shared.values(), *(row.b_name or row.name for row in folded.values())}

    def of_one(name: str, status: str, ours: Tensor | None, theirs: Tensor | None) -> TensorDifference:
        tensor, note = ours if theirs is None else theirs, None
        if name in biases and tensor is not None and not tensor.count_nonzero():
            note = "all zeros, the same as no bias"
            status = "folded" if is_exported else status
        if name in shared and theirs is None:
            note, status = f"the same as {shared[name]}, which B stores once, or transposed", "folded"
        return TensorDifference(name=name, status=status, matched=note, **traits(ours, theirs))

    rows = [
        _compare(name, a[name], pairs[name], b[pairs[name]], tolerance)
        if name in pairs
        else folded.get(name) or of_one(name, "removed", a[name], None)
        for name in track(a, len(a))
    ]
    added = (of_one(name, "added", None, tensor) for name, tensor in b.items() if name not in paired)
    hint = EXPORT_AGAIN if is_exported else "fold the norms of A into its convolutions again"
    return (*rows, *added), renamings, tuple(cause for found in folds for cause in found.causes(b, hint))


def _rows_of_fold(
    found: StoredFold, a: Mapping[str, Tensor], b: Mapping[str, Tensor], tolerance: float
) -> Iterator[TensorDifference]:
    """Yield the rows of a convolution and its norm, which B has as one weight and one bias."""
    fold, tolerance = found.fold, max(tolerance, FOLDING)
    last = f"{fold.norm}.bias" if f"{fold.norm}.bias" in a else f"{fold.norm}.running_mean"
    held = {
        f"{fold.conv}.weight": (fold.weight, b[found.b_weight], found.b_weight),
        last: (fold.shift, found.bias_in(b), found.b_bias or last),
    }
    for name in found.parts:
        if name not in held:
            note, own = f"folded into {fold.conv}", traits(a[name], None)
            yield TensorDifference(name=name, status="folded", matched=note, **own)
            continue
        ours, theirs, b_name = held[name]
        row = _compare(name, ours, name, theirs, tolerance)
        note = f"with {fold.norm} folded in, eps {found.eps:g}"
        yield replace(row, b_name=b_name if b_name != name else None, matched=note)


def _compare(name: str, a: Tensor, b_name: str, b: Tensor, tolerance: float) -> TensorDifference:
    row = TensorDifference(
        name=name, status="reshaped", b_name=b_name if b_name != name else None, **traits(a, b)
    )
    codes = next((y.dtype for x, y in ((a, b), (b, a)) if y.dtype in CODES and x.dtype not in CODES), None)
    as_codes = replace(row, status="retyped", problem=f"{dtype_name(codes)} codes, whose scale is not known")
    if a.shape != b.shape:
        return as_codes if codes else row
    try:
        distance = to_distance(sum_up(a, b))
    except (TypeError, RuntimeError) as error:
        refuse_failed_device(error)
        # A tensor that cannot be compared is reported in its row and does not end the run.
        return replace(row, status="changed", problem=in_one_line(error, 200))
    if codes and distance.rel_l2 > FAR:
        return as_codes
    if a.dtype != b.dtype and (not tolerance or distance.exceeds(tolerance)):
        status = "retyped"
    elif distance.exceeds(tolerance):
        status = "changed"
    else:
        status = "same" if b_name == name else "renamed"
    return replace(row, status=status, **distance.figures())
