"""The columns of `grads`: parameters, and activations."""

import math
from collections.abc import Sequence
from statistics import median

from modelscope_cli.records.grads import (
    EXPLODING,
    NEVER_CALLED,
    VANISHING,
    ActivationGradient,
    GradsRecord,
    GradTotals,
    ParameterGradient,
    is_judged,
    steady_fall,
    where_zero,
)
from modelscope_cli.records.naming import counted, output_label_of, rounded, some
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import drift_facts, headline, hook_facts, not_called_facts
from modelscope_cli.report.sheet import Column, Sheet, field_columns

Row = ParameterGradient | ActivationGradient
_OUTSIZED, _LEAST_GAIN = 20, 10  # times the median of all layers; at most 2 in those that torch initialises
_LARGE = 1000.0  # times the gradient at the output: no fault of deep nets, but not found to be in order


def grads_sheet(record: GradsRecord, table: str = "parameters") -> Sheet:
    """Return one of the tables, `parameters` or `activations`, in execution order."""
    passes = f"{record.passes} passes" if record.passes > 1 else ""
    rows: Sequence[Row] = record.parameters if table == "parameters" else record.activations
    return Sheet(
        title=headline(record.run, record.images, passes, f"{record.mode} mode"),
        columns=grads_columns(table, record),
        rows=tuple(rows),
        facts=_facts(record, rows),
        is_dim=lambda row: row.mark in ("frozen", "unused") or row.grad_norm is None,
        is_bad=_is_marked,
        is_by_layer=True,
    )


def grads_columns(table: str, record: GradsRecord | None = None) -> tuple[Column, ...]:
    """Return all columns of a table; with a record, empty ones are hidden in the terminal."""
    if table != "parameters":
        return (
            Column("name", "layer", output_label_of, is_number=False, rank=0),
            *field_columns(ActivationGradient, "type shape"),
            *_figures(ActivationGradient, record.activations if record else ()),
            _MARK,
            *field_columns(ActivationGradient, "order"),
        )
    is_clipped = bool(record and record.totals.norm_before_clip is not None)
    has_noise = bool(record and record.passes > 1)
    return (
        *field_columns(ParameterGradient, "name type shape"),
        *_figures(ParameterGradient, record.parameters if record else ()),
        *field_columns(ParameterGradient, "before clipped", is_shown=is_clipped),
        *field_columns(ParameterGradient, "weight_norm ratio"),
        *field_columns(ParameterGradient, "noise snr", is_shown=has_noise),
        *field_columns(ParameterGradient, "zero", is_bad=lambda r: r.mark == "zero"),
        _MARK,
        *field_columns(ParameterGradient, "numel trainable order"),
    )


def _is_marked(row: Row) -> bool:
    return row.mark not in ("", "frozen", "unused")


_MARK = Column(
    "mark", "", lambda r: r.mark, lambda r: r.problem or r.mark, is_number=False, rank=0, is_bad=_is_marked
)


def _figures(kind: type[Row], rows: Sequence[Row]) -> tuple[Column, ...]:
    """Return the columns that both tables have."""
    has_non_finite = any(row.nan_count or row.inf_count for row in rows)
    return (
        *field_columns(kind, "norm"),
        *field_columns(kind, "mean std min max abs_max"),
        *field_columns(kind, "nan inf", is_shown=has_non_finite),
    )


def _facts(record: GradsRecord, rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    loss, totals = record.loss, record.totals
    target = "" if loss.target in ("none", loss.name) else f", target {loss.target}"
    facts = [
        ("answer", _result(record)),
        ("loss", f"{numbers.number(loss.value) or loss.value} ({loss.name}{target})"),
        ("gradient", _norms(record)),
    ]
    if totals.frozen_params:
        trained, frozen = numbers.count(totals.trainable_params), numbers.count(totals.frozen_params)
        facts.append(("trained", f"{trained} parameters, {frozen} frozen"))
    marks = [row.mark for row in rows if row.mark and not (row.mark == "zero" and _head_of_zeros(record))]
    limits = {"vanishing": f"below {VANISHING:g}", "exploding": f"above {EXPLODING:g}"}
    weights = [row for row in rows if rows is record.activations or is_judged(row.shape)]
    unjudged = "; biases and norms are not judged" * (len(weights) < len(rows))
    when = _BEFORE * (record.clip is not None)
    for mark in dict.fromkeys(marks):
        if limit := limits.get(mark):
            first = [row.name for row in rows if row.mark == mark][-1]
            where = f"from {first} towards the input, |g|{when} is {limit} times the one at the output"
            facts.append((mark, f"{where}{unjudged}; try {_remedy(record, mark)}"))
        else:
            n = f"{marks.count(mark)} of {counted(len(rows), 'gradient')}"
            facts.append((mark, n + _cause(record, mark)))
    facts += [*drift_facts(record.batch_norm), *hook_facts(record.hooks)]
    return (*facts, *not_called_facts(record.not_called))


def _remedy(record: GradsRecord, mark: str) -> str:
    """Return the remedy for gradients with this mark in this model."""
    types = " ".join(row.type for row in record.activations)
    ways = ["a norm after each layer"] * ("Norm" not in types) + ["torch.nn.init.kaiming_normal_"]
    if mark == "exploding":
        return ", ".join([*ways, "a lower learning rate"]) + " or --clip-norm 1" * (record.clip is None)
    ways += ["ReLU in place of sigmoid and tanh"] * ("Sigmoid" in types or "Tanh" in types)
    return f"{', '.join(ways)} or residual connections"


_BEFORE = " before clipping"


def _unclipped(row: Row | GradTotals) -> float | None:
    """Return |g| before clipping, which the marks are of."""
    before = getattr(row, "norm_before_clip", None)
    return row.grad_norm if before is None else before


def _cause(record: GradsRecord, mark: str) -> str:
    """Say where the gradient stops, as far as that is certain."""
    if mark == "zero" and (zero := where_zero(record.parameters, record.activations)):
        return f": {zero}"
    calls = {row.order: row.name for row in record.activations}
    unused = [row for row in record.parameters if row.mark == mark == "unused"]
    never = dict.fromkeys(row.layer for row in unused if row.problem == NEVER_CALLED)
    lost = [row for row in unused if calls.get(row.order) == row.layer and row.layer not in never]
    words = [f"{some(list(never))} {'is' if len(never) == 1 else 'are'} never called"] * bool(never)
    if lost:
        last = max(lost, key=lambda row: row.order)
        is_of_a_box = record.loss.target.startswith("box ")  # which other boxes and heads have no part in
        why = "" if is_of_a_box else ": look for detach(), no_grad() or an unused output"
        what = "this box" if is_of_a_box else "the loss"
        words.append(f"{last.layer} runs, but {what} does not depend on it{why}")
    return ": " * bool(words) + "; ".join(words)


def answer(record: GradsRecord) -> str:
    """Return the norm of the gradient and the result."""
    norm = numbers.loss(_unclipped(record.totals) or 0.0)
    return f"|g| {norm}{_BEFORE * (record.clip is not None)}; {_result(record)}"


def _result(record: GradsRecord) -> str:
    return "; ".join(filter(None, (_marked(record), _outsized(record.parameters), _falling(record))))


def _outsized(rows: Sequence[ParameterGradient]) -> str:
    """Say which weight makes a signal far larger than the others do, by the root of its squares for an output."""
    gains = {
        row.name: row.weight_norm / math.sqrt(row.shape[row.type.startswith("ConvTranspose")])
        for row in rows
        if row.weight_norm and is_judged(row.shape) and row.type.startswith(("Conv", "Linear"))
    }
    usual, name = median(gains.values() or [0.0]), max(gains, key=lambda name: gains[name], default="")
    if len(gains) < 3 or gains[name] <= max(_LEAST_GAIN, _OUTSIZED * usual):
        return ""
    return f"{name} is far too large: it multiplies a signal by {rounded(gains[name])}, others by {rounded(usual)}"


def _falling(record: GradsRecord) -> str:
    """Say how the gradient falls towards the input, if in most of the layers it does so steeply."""
    words = steady_fall(record.parameters)[1]
    if not words or "fresh_batch_norms" in {one.code for one in record.run.warnings}:
        return ""
    return words + f": try {_remedy(record, 'vanishing')}" * (not any(map(_is_marked, record.parameters)))


def _marked(record: GradsRecord) -> str:
    """Return how many gradients are marked; of none, only for what was judged that nothing is wrong."""
    rows, codes = record.parameters, {one.code for one in record.run.warnings}
    marks = [row.mark for row in rows if row.mark]
    counts = [f"{marks.count(mark)} {mark}" for mark in dict.fromkeys(marks)]
    n, at_output = len([row for row in rows if row.grad_norm is not None]), record.totals.output_grad_norm
    if head := _head_of_zeros(record):
        text = f"the weights of {head} are zero, so no gradient reaches the layers before it in this step"
        return f"{text}: load weights, or judge the others after a step of training, which changes {head}"
    if any(map(_is_marked, rows)) or not n:
        return ", ".join([f"of {counted(len(rows), 'parameter gradient')}", *(counts or ["none is shown"])])
    if not 0 < at_output < math.inf:
        other = "".join(f"; --target {int(not n)} has one" for n in record.loss.classes[:1])
        why = f", as the output explodes{other}" if "large_scores" in codes else ""
        return f"not judged: the gradient of the loss at the output is zero or not finite{why}"
    kinds = "zero" if "fresh_batch_norms" in codes else "zero, vanishing or exploding"
    kinds = "zero or exploding" if _falling(record) else kinds
    told = [f"no {kinds} gradient in {counted(n, 'parameter')}", *counts]
    times = (_unclipped(record.totals) or 0.0) / at_output
    if times > _LARGE:
        told[0] = f"|g| is {times:,.0f} times that at the output; no zero or vanishing gradient"
    elif "large_scores" in codes:
        told[0] = "the output explodes, so gradients were not judged: modelscope check names the layer"
    return ", ".join(told)


def _head_of_zeros(record: GradsRecord) -> str | None:
    """Return the layer whose weights of zero keep the gradient from all weights before it."""
    judged = [row for row in record.parameters if is_judged(row.shape) and row.grad_norm is not None]
    head = next((row for row in reversed(judged) if row.weight_norm == 0 and row.grad_norm), None)
    zero = [row.grad_norm == 0 for row in judged if head is not None and row.order < head.order]
    is_all = bool(zero) and all(zero) and {row.mark for row in judged} <= {"", "zero"}
    return head.layer if head is not None and is_all else None


def _norms(record: GradsRecord) -> str:
    totals = record.totals
    text = f"|g| {numbers.loss(totals.grad_norm)} over all parameters"
    if record.clip is not None:
        value = f"{record.clip.value:g}"
        how = f"clamped to [-{value}, {value}]" if record.clip.kind == "value" else f"scaled to norm {value}"
        clipped = totals.clipped_fraction
        share = f"{numbers.percent(clipped)} clipped" if clipped else "nothing was clipped"
        text += f", {numbers.loss(totals.norm_before_clip)} before clipping ({how}; {share})"
    each = "" if record.passes == 1 else " per image" if record.passes == record.images else " per batch"
    return f"{text}, {numbers.loss(totals.output_grad_norm)} at the output{each}"
