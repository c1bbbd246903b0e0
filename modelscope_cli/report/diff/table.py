"""The columns of `diff`."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from modelscope_cli.records.diff import (
    BY_VALUE,
    BY_WEIGHTS,
    FOLDING,
    Difference,
    DiffRecord,
    DiffSide,
    FigureDifference,
    LayerDifference,
    Renaming,
    TensorDifference,
)
from modelscope_cli.records.naming import counted, some
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import MOST_ROWS, Column, Sheet, field_columns

_ALIKE = ("same", "not tested", "folded")  # rows that show no difference
_OUTCOMES = ("verdict", "loss", "evaluation")  # settings of two trainings that are what became of them
# Causes ahead of all layers
_OF_INPUTS = ("axis_order", "channel_order", "input_range", "preprocessing", "random_weights")
_WRAPPERS = {"module.": "DataParallel", "_orig_mod.": "torch.compile"}
_CLASSES = 10  # listed, of which B is right more or less often than A
_CHANCE = 0.05  # p-value of the difference of two accuracies, above which it may be chance


def diff_sheet(record: DiffRecord, *, show_all: bool = False) -> Sheet:
    """Return the rows that differ, even within the tolerance; with `show_all` also bit-equal ones.

    Of results, only the first number of each row that differs beyond the tolerance, unless `show_all`.
    """
    has_order = record.tensors is None  # the tensors of a file have none
    return Sheet(
        title=_title(record),
        columns=diff_columns(record),
        rows=record.rows if show_all else _rows_shown(record),
        facts=_facts(record, show_all=show_all),
        is_dim=lambda row: row.status == "same",
        is_by_layer=True,
        most_rows=max(len(record.rows), 1) if show_all else MOST_ROWS if record.layers is not None else 20,
        size=lambda row: math.inf if row.rel_l2 is None else 1.0 if row.rel_l2 == math.inf else row.rel_l2,
        is_bad=lambda row: bool(row.nonfinite) or (has_order and row.label == record.first_divergence),
    )


def _rows_shown(record: DiffRecord) -> tuple[Difference, ...]:
    if record.figures is None:
        return tuple(row for row in record.rows if row.differing or row.status not in (*_ALIKE, "renamed"))
    first = {row.name: row for row in reversed(record.figures) if row.status != "same"}
    return tuple(first.values())[::-1]


def verdict(record: DiffRecord, most: int = 10) -> str:
    """Return lines with the totals, the first difference, and the first rows that differ."""
    differences = [row for row in record.rows if row.status not in _ALIKE]
    lines = [f"{_title(record)}: {_totals(record)}"]
    lines += [f"{cause.kind.replace('_', ' ')}: {cause.message}" for cause in record.causes]
    lines += [f"{label}: {text}" for label, text in _worst(record)]
    lines += [f"  {_describe(row)}" for row in differences[:most]]
    lines += [f"  and {len(differences) - most} more"] * (len(differences) > most)
    return "\n".join([*lines, f"tolerance: {_tolerance(record)}"])


def answer(record: DiffRecord) -> str:
    """Return whether A and B are the same, why and where they differ, and what becomes of the predictions."""
    totals, n = record.totals, record.images or 0
    if record.outcome == "not tested":
        what = "the output" if totals.same else "any layer"
        return f"Not tested: B has no value for {what} of A; {_totals(record)}"
    changed = f"the prediction changes for {record.labels_changed} of {counted(n, 'image')}"
    alike = "the same prediction" + f" for all {n} images" * (n > 1)
    predictions = changed if record.labels_changed else alike
    if record.accuracy is not None:
        a, b = (numbers.percent(one.value) for one in (record.accuracy.a, record.accuracy.b))
        predictions += f" (accuracy {a} in A, {b} in B)" if a != b else f" (accuracy {a})"
    ending = [_own(record), predictions * (record.labels_changed is not None)]
    if record.is_same:
        return "; ".join(filter(None, (*_alike(record), *ending)))
    names = [_renamed(one) for one in record.renamings]
    is_renamed = record.tensors is not None and totals.renamed + totals.same == len(record.rows)
    if is_renamed and not record.causes:
        return "; ".join((f"The same values under different names: {_totals(record)}", *names))
    causes = [cause.message for cause in record.causes[: 1 if record.layers is not None else 2]]
    is_told = ending[0] or (causes and record.layers is None)
    where = [": ".join(fact) for fact in _worst(record) if not fact[1].startswith("none") and not is_told]
    return "Different: " + ("; ".join(filter(None, (*causes, *where, *names, *ending))) or _totals(record))


def _alike(record: DiffRecord) -> Iterator[str]:
    """Yield in which sense A and B are the same, and what was not compared."""
    differing = [row for row in record.rows if row.differing and row.status != "not tested"]
    within = _tolerance(record).partition(" (")[0]
    how = f"within a {within}" if differing or record.figures is not None else "no bit differs"
    models = [x.model for x in (record.run, record.b)]
    is_program = any(
        x.name.lower().endswith((".onnx", ".pt2")) or x.class_name == "TorchScript" for x in models
    )
    same, other = "No difference", "only weights were compared, not what a model computes with them"
    folds = [row.matched for row in record.tensors or () if "folded in," in (row.matched or "")]
    every_eps = [*dict.fromkeys(text.rpartition("eps ")[2] for text in folds if text)]
    eps = " or ".join(every_eps) if every_eps != ["1e-05"] else ""
    condition = f" if the norms of A have an epsilon of {eps} (torch's default is 1e-05)" * bool(eps)
    if record.operators:
        same = f"The same weights and {record.operators} operators"
        other = other.replace("weights", "weights and operators")
    elif record.tensors and (is_program or condition):
        same = f"Equal weights{condition}, and nothing else was compared"
        epsilon = "the epsilon of norms, " * (not record.totals.folded)
        other = f"{epsilon}strides, activations and the order of the layers may differ"
        other += " (with an input, diff runs both)" * all(x.name.endswith(".pt2") for x in models)
    elif "quantised" in f"{record.run.dtype} {record.b.dtype}":
        same = f"{'B' if 'quantised' in record.b.dtype else 'A'} is quantised"
    elif any(one.kind == "operator" for one in record.causes):  # which may matter for another input
        same = "No difference for this input"
    compared = {row.name for row in record.layers or () if row.status == "same"}
    lead = f"{same}: {'only the output was compared' if compared == {''} else _totals(record)}, {how}"
    if record.rounded is not None and differing:
        lead = f"No difference beyond the rounding of {record.rounded} ({record.tolerance:.2g})"
    yield lead
    if differing:
        yield f"the largest difference is {_describe(max(differing, key=lambda row: row.rel_l2 or 0.0))}"
    yield from (cause.message for cause in record.causes[:1] if cause.kind != "quantised")
    yield from [other] * (record.tensors is not None)


def _renamed(one: Renaming) -> str:
    """Return how names differ by their beginning."""
    side, prefix = ("B", one.b_prefix) if not one.prefix else ("A", one.prefix)
    if one.prefix and one.b_prefix:
        return f"'{one.prefix}' in A is '{one.b_prefix}' in B"
    wrappers = [by for word, by in _WRAPPERS.items() if f".{word}" in f".{prefix}"]
    return f"the names in {side} begin with '{prefix}'" + f" (from {' and '.join(wrappers)})" * bool(wrappers)


def _own(record: DiffRecord) -> str:
    """Return which layers add most to the difference themselves, where what they are given does not differ."""
    own = [row for row in record.layers or () if (row.own_l2 or 0.0) > FOLDING]
    named = {None, *(name for row in own for name in (row.label, row.name))}
    # A cause elsewhere has told why these differ, and a value of another shape cannot be given to A
    is_elsewhere = any(one.layer not in named or one.kind in _OF_INPUTS for one in record.causes[:1])
    # Nor can codes, behind which the layers of A are not given B's inputs
    has_codes = any(row.matched == "no matching value in B" for row in record.layers or ())
    if is_elsewhere or record.totals.reshaped or (has_codes and "quantised" in record.b.dtype):
        return ""
    rows = sorted(own, key=lambda row: -(row.own_l2 or 0.0))
    matched = [f"{one.matched}, " if one.matched else "" for one in rows]
    sizes = [f"relative L2 {numbers.number(one.own_l2)}" for one in rows]
    texts = [f"{one.label} ({how}{size})" for one, how, size in zip(rows[:3], matched, sizes, strict=False)]
    if rows and record.is_same:
        what = "the difference" if record.rounded is None else "rounding"
        return f"layer by layer, on the same inputs, {what} is largest in {texts[0]}"
    if len(rows) > 1:
        return f"with B's inputs, {len(rows)} layers of A still differ, most of all {', '.join(texts)}"
    return f"with B's inputs, only {texts[0]} still differs" if rows else ""


def diff_columns(record: DiffRecord | None = None) -> tuple[Column, ...]:
    """Return all columns of `diff`; with a record, empty ones are hidden in the terminal."""
    rows = record.rows if record else ()
    has_shapes = any(row.shape != row.b_shape for row in rows)
    is_run = record is None or record.layers is not None
    has_figures = record is not None and record.figures is not None
    title = "row" if has_figures else "layer" if is_run else "tensor"

    def has(key: str) -> bool:
        return any(getattr(row, key, None) for row in rows)

    return (
        Column("name", title, lambda r: r.label, is_number=False, rank=0, also=("row", "tensor")),
        *(_FIGURES if has_figures else ()),
        _of_some_rows("b_name", "b name", is_number=False, rank=1, is_shown=has("b_name")),
        _of_some_rows("type", "type", is_number=False, rank=0, is_shown=is_run),
        *field_columns(Difference, "status", text=_status),
        Column("shape", "shape", *_pair("shape"), is_number=False, rank=2, is_shown=has_shapes),
        Column(
            "dtype", "dtype", *_pair("dtype"), is_number=False, rank=3, is_shown=any(map(_is_retyped, rows))
        ),
        *field_columns(Difference, "max_abs mean_abs rel_l2"),
        _of_some_rows("own_l2", "own L2", rank=1, is_shown=has("own_l2")),
        *field_columns(Difference, "cosine", text=lambda r: "" if r.cosine is None else f"{r.cosine:.6f}"),
        *field_columns(Difference, "differing", text=_values),
        *field_columns(Difference, "nonfinite", is_shown=has("nonfinite")),
        _of_some_rows("rounding", "rounding", rank=2, is_shown=bool(_unstable(rows))),
        _of_some_rows("matched", "matched", is_number=False, rank=5, is_shown=has("matched")),
        _of_some_rows("order", "order", is_shown=False),
    )


def _unstable(rows: Sequence[Difference]) -> list[LayerDifference]:
    """Return the rows that differ no more than A's own rounding."""
    return [row for row in rows if isinstance(row, LayerDifference) and row.rounding is not None]


def _of_some_rows(key: str, title: str, *, is_number: bool = True, **traits: Any) -> Column:
    """Return a column of an attribute that only one kind of differences has; empty for the others."""

    def value(row: Difference) -> Any:
        return getattr(row, key) if hasattr(type(row), key) else None

    text = (lambda row: numbers.number(value(row))) if is_number else None
    return Column(key, title, value, text, is_number=is_number, **traits)


_FIGURES = (_of_some_rows("a", "A", rank=0), _of_some_rows("b", "B", rank=0))


def _pair(trait: str) -> tuple[Callable[[Difference], str], Callable[[Difference], str]]:
    """Return value and text of an attribute on both sides: `64x3 -> 64x4` where they differ."""

    def value(row: Difference) -> str:
        both = [getattr(row, trait), getattr(row, f"b_{trait}")]
        texts = [numbers.shape(one) if isinstance(one, tuple) else one for one in both if one is not None]
        return " -> ".join(dict.fromkeys(texts))

    return value, value


def _is_retyped(row: Difference) -> bool:
    """Tell whether a tensor has another dtype in B, within the tolerance or not."""
    is_one = isinstance(row, TensorDifference) and row.status in ("retyped", "same")
    return is_one and row.dtype != row.b_dtype


def _status(row: Difference) -> str:
    is_within = row.status == "same" and row.differing
    status = "within" if is_within else row.status.replace("reshaped", "another shape")
    return row.problem or ("retyped, within" if status == "within" and _is_retyped(row) else status)


def _values(row: Difference) -> str:
    if row.differing is None or row.numel is None:
        return ""
    return f"{numbers.count(row.differing)} of {numbers.count(row.numel)}"


def _title(record: DiffRecord) -> str:
    a, b, input_info = record.run.model, record.b.model, record.run.input
    weights = a.weights.resolved, b.weights.resolved
    if a.name != b.name or "object" in (a.source, b.source, *weights):  # two modules may be of one class
        names = f"{a.name} against {b.name}"
    elif weights[0] != weights[1]:
        names = f"{a.name}, {weights[0]} compared with {weights[1]}"
    elif input_info is not None and record.run.dtype != record.b.dtype:
        names = f"{a.name}, {record.run.dtype} against {record.b.dtype}"
    else:
        names = f"{a.name} compared with itself" if record.figures is None else f"two results of {a.name}"
    if record.figures is not None:
        return f"{names}, number by number"
    if input_info is None:
        return f"{names}, tensor by tensor"
    drawn = f"{input_info.source} {numbers.shapes(input_info.shape)}"
    return f"{names} on {counted(record.images or 0, 'image') if input_info.source == 'image' else drawn}"


def _side(side: DiffSide) -> str:
    """Return what A or B is: the model and its settings, or the dtype of a file."""
    if side.model.source == "file":
        return ", ".join(filter(None, (side.model.class_name, side.dtype)))
    mode = f", {side.mode} mode" if side.mode else ""
    weights = side.model.weights.resolved
    named = side.model.class_name + f", weights {weights}" * (weights != "object")
    seed = "" if side.seed is None else f", seed {side.seed}"
    return f"{named}{mode}, {side.dtype}, {side.device}{seed}"


def _facts(record: DiffRecord, *, show_all: bool = False) -> tuple[tuple[str, str], ...]:
    facts = _first_facts(record)
    facts += [(one.name, f"{one.a} in A; {one.b} in B") for one in record.settings if one.name in _OUTCOMES]
    others = [one for one in record.settings if one.name not in _OUTCOMES]
    facts += [("setting", f"{one.name}: {one.a} in A, {one.b} in B") for one in others]
    facts += [("labels", _labels(record, show_all=show_all))] * (record.labels_changed is not None)
    ours = DiffSide(record.run.model, record.run.device, record.run.dtype, record.run.seed, record.mode)
    facts += [("A", _side(ours)), ("B", _side(record.b))]
    facts.append(("weights", _sizes(record)) if record.sizes else ("totals", _totals(record)))
    if record.matched_by is not None:
        facts.append(("layers by", record.matched_by))
    facts += _worst(record)
    is_explained = bool(record.causes) or record.first_divergence is None
    if record.matched_by not in (None, BY_WEIGHTS, BY_VALUE) and not is_explained:
        checked = "training mode, batch, inputs, order, precision, arguments and weights were checked"
        facts.append(("cause", f"not found: {checked}"))
    facts.append(("tolerance", _tolerance(record)))
    if unstable := _unstable(record.rows):
        most = max(unstable, key=lambda row: row.rounding or 0.0)
        text = f"A is unstable: rounding alone changes {most.label} by {numbers.number(most.rounding)}"
        count = f"{counted(len(unstable), 'row')} with differences of that size"
        facts.append(("rounding", f"{text}; {count} count as the same"))
    n_hidden = sum(row.status != "same" for row in record.figures or ()) - len(_rows_shown(record))
    more = f"{counted(n_hidden, 'other number')} of these rows changed: --all lists every one"
    facts += [("more", more)] * (record.figures is not None and n_hidden > 0)
    for renaming in record.renamings:
        where = counted(renaming.tensors, "tensor")
        line = f"b = {{k.removeprefix({renaming.b_prefix!r}): v for k, v in b.items()}}"
        undo = f": {line}   # gives them the names in A, in Python" * (not renaming.prefix)
        facts.append(("prefix", f"'{renaming.prefix}' in A is '{renaming.b_prefix}' in B, in {where}{undo}"))
    renamed = [row for row in record.tensors or () if row.status == "renamed" and not row.differing]
    if len(renamed) > sum(one.tensors for one in record.renamings):
        text = f"{counted(len(renamed), 'tensor')} equal under a different name, such as {renamed[0].name}"
        facts.append(("renamed", f"{text}, in B {renamed[0].b_name}: --all lists them"))
    return tuple(facts)


def _first_facts(record: DiffRecord) -> list[tuple[str, str]]:
    """Return the answer, who is right, and the causes: what the answer does not say of them."""
    last = {one.hint: n for n, one in enumerate(record.causes)}  # with which each hint is given, once
    first = answer(record)
    facts = [*_accuracy(record), ("answer", first)]
    for n, one in enumerate(record.causes):
        parts = (one.message * (one.message not in first), one.hint * (last[one.hint] == n))
        facts += [(one.kind.replace("_", " "), ": ".join(filter(None, parts)))] * any(parts)
    return facts


def _labels(record: DiffRecord, *, show_all: bool = False) -> str:
    """Return for how many images the label changes, and from which to which."""
    texts = []
    for row in record.changed_predictions:
        a, b = (f"{one.label or f'class {one.index}'} {numbers.percent(one.score)}" for one in (row.a, row.b))
        texts.append(f"{row.image} ({a} in A, {b} in B)")
    of_all = counted(record.images or 0, "image")
    text = (
        f"{record.labels_changed} of {of_all} change" if record.labels_changed else f"unchanged for {of_all}"
    )
    text += f" (in {record.ties}, B has a tie for the highest score)" * bool(record.ties)
    most = len(texts) if show_all else 12 if record.sizes else 2
    rest = " (--all names every one)" * (len(texts) > most)
    return text + f": {some(texts, most)}{rest}" * bool(texts)


def _accuracy(record: DiffRecord) -> list[tuple[str, str]]:
    """Return how often each is right, and whether chance may explain which is right more often."""
    if (both := record.accuracy) is None:
        return []
    a, b = (numbers.percent(one.value) for one in (both.a, both.b))
    text = f"A {a}, B {b} of {counted(record.images or 0, 'image')}"
    if both.only_a + both.only_b:
        chance = f"p {both.p_value:.2g}, exact sign test"
        whether = "may be chance" if both.p_value > _CHANCE else "more than chance"
        text += f"; only A is right for {both.only_a}, only B for {both.only_b}: {whether} ({chance})"
    assumed = "; the classes have no names: assuming the alphabetical order of the folders"
    facts = [("accuracy", text + assumed * both.is_order_assumed)]
    by_class = [f"{one.label} {one.a} to {one.b} of {one.images}" for one in both.classes]
    return [*facts, ("correct, A to B", some(by_class, _CLASSES))] if by_class else facts


def _sizes(record: DiffRecord) -> str:
    sizes = zip("AB", record.sizes, strict=True)
    texts = [
        f"{n_layers} layers{f' and {n:,} parameters' * bool(n)} in {side}" for side, (n_layers, n) in sizes
    ]
    return f"not compared, as most differ in name or shape: {', '.join(texts)}"


def _totals(record: DiffRecord) -> str:
    names = [field.name for field in dataclasses.fields(record.totals)[1:]]
    counts = [f"{getattr(record.totals, name)} {name.replace('_', ' ')}" for name in names]
    shown = ", ".join(text for text in counts if not text.startswith("0 ")) or "nothing"
    return shown.replace("reshaped", "of another shape")


def _tolerance(record: DiffRecord) -> str:
    what = "L2" if record.figures is None else "difference"
    if record.tolerance < FOLDING and any("folded in," in (x.matched or "") for x in record.tensors or ()):
        return f"relative L2 of {FOLDING:g} (of a norm of A that is folded in; else {record.tolerance:g})"
    return f"relative {what} of {record.tolerance:g} ({record.tolerance_reason})"


def _worst(record: DiffRecord) -> list[tuple[str, str]]:
    """Return the first row that diverges, and of results and tensors the one that differs most."""
    facts = []
    if record.tensors is None:
        first = next((row for row in record.rows if row.label == record.first_divergence), None)
        name = "output" if record.sizes else "first divergence"
        none = "equal" if record.sizes else "none: no layer exceeds the tolerance"
        facts.append((name, _describe(first) if first else none))
    changed = [row for row in record.rows if row.rel_l2 and row.status != "same" and row.shape != ()]
    if changed and record.layers is None:
        finite = [row for row in changed if row.rel_l2 != math.inf]
        facts.append(("most changed", _describe(max(finite or changed, key=lambda row: row.rel_l2 or 0))))
    return facts


def _describe(row: Difference) -> str:
    if isinstance(row, FigureDifference) and row.rel_l2 is not None:
        return f"{row.label}, {numbers.number(row.a)} in A and {numbers.number(row.b)} in B"
    if row.rel_l2 is None:
        shapes = f" {_pair('shape')[0](row)}" if row.shape != row.b_shape else ""
        return f"{row.label} ({row.problem or ('NaN or infinity' if row.nonfinite else row.status)}{shapes})"
    return f"{row.label}, relative L2 {numbers.number(row.rel_l2)}"


EVERY_COLUMN = (*diff_columns(), *_FIGURES)
