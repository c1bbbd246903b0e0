"""The columns of `summary`."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import counted, label_of, some
from modelscope_cli.records.summary import (
    INSIDE,
    MEASURED,
    LayerShape,
    MemoryLevel,
    SummaryRecord,
    TrainingMemory,
)
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Layout, Sheet, field_columns

_Call = tuple[str, int]


def summary_sheet(record: SummaryRecord, measured: Sequence[str] = ()) -> Sheet:
    """Return the tree of layers and the totals; `measured`: columns that are always present."""
    # If the forward raised: the layers up to the failing one.
    rows = record.layers if record.failed is None else tuple(row for row in record.layers if row.executed)
    return Sheet(
        title=_title(record),
        columns=tuple(
            column
            for column in summary_columns(rows, record.totals.params)
            if column.key not in (*MEASURED, "saved", "peak")
            or column.key in measured
            or any(column.value(row) is not None for row in rows)
        ),
        rows=rows,
        facts=_facts(record),
        is_by_layer=True,
        is_tree=True,
        alike=lambda row: (row.name, row.output_shapes, row.macs) if row.calls > 1 else None,
        is_dim=lambda row: not row.executed and row.note != INSIDE,
        is_bad=lambda row: record.failed is not None and label_of(row) == record.failed,
    )


def answer(record: SummaryRecord) -> str:
    """Return the size and cost of the model, or the layer at which its forward pass failed."""
    totals = record.totals
    size = f"{numbers.short(totals.params)} parameters, {numbers.short(totals.macs)} multiply-adds"
    if record.failed is not None:
        return f"The forward pass fails at {record.failed}; the layers before it: {size}"
    words = [f"{size}, {numbers.memory(totals.param_bytes)} of weights in {totals.layers} layers"]
    if record.training is not None:
        images, peak = counted(record.training.batch, "image"), numbers.memory(record.training.peak_bytes)
        words.append(f"a training step on {images} needs {peak}")
    words += [f"{len(record.uncounted_ops)} kinds of operators not counted"] if record.uncounted_ops else []
    return "; ".join(words)


def summary_columns(rows: Sequence[LayerShape] = (), total_params: int | None = None) -> tuple[Column, ...]:
    """Return all columns of `summary` for a tree of `rows`; shares are of `total_params`."""
    tree, inner = _tree(rows)

    def share(row: LayerShape) -> float | None:
        if total_params is None:
            raise AttributeError("the share of a layer needs the total of the model; record.to_rows() has it")
        return row.params / total_params if total_params and row.call == 0 else None

    columns = (
        Column("name", "layer", label_of, lambda r: tree[r.name, r.call], is_number=False, rank=0),
        *field_columns(LayerShape, "type"),
        Column("kernel", "kernel", lambda r: _kernel(r) or None, _kernel, rank=4),
        Column(
            "input",
            "input",
            lambda r: _all(r.input_shapes),
            lambda r: numbers.shapes(r.input_shapes),
            is_number=False,
            rank=3,
        ),
        Column("output", "output", lambda r: _all(r.output_shapes), _output, is_number=False, rank=0),
        *field_columns(LayerShape, "params", text=_params),
        Column("share", "share", share, lambda r: numbers.percent(share(r)) if r.params else "", rank=5),
        *field_columns(LayerShape, "macs memory saved peak order depth trainable flops time field"),
    )

    def with_sums(column: Column) -> Column:
        def is_sum(row: LayerShape) -> bool:
            parts = sum(cast(float, column.value(one) or 0) for one in inner[row.name, row.call])
            # The time of a call includes the hooks of those inside, which none of their times has
            return parts > 0 if column.key == "time" else 2 * parts > cast(float, column.value(row) or 0)

        return replace(column, is_sum=is_sum) if column.key in _AMOUNTS else column

    return tuple(map(with_sums, columns))


# Of a layer they include those of the layers inside it; `memory` is of its output, which is that of its last layer.
_AMOUNTS = ("params", "share", "macs", "memory", "saved", "peak", "trainable", "flops", "time")


def measured_for(layout: Layout, is_training: bool) -> tuple[str, ...]:
    """Return which columns have to be measured, of those that are listed or sorted by.

    Args:
        is_training: whether a training step is simulated, which two columns are about.
    """
    keys = {one.key for one in replace(layout, columns=layout.columns or "name").check(summary_columns())}
    if not is_training and (missing := keys & {"saved", "peak"}):
        raise UsageError(f"the column '{min(missing)}' describes a training step: add --train", "--train")
    return tuple(key for key in MEASURED if key in keys)


def _tree(rows: Sequence[LayerShape]) -> tuple[dict[_Call, str], Mapping[_Call, Sequence[LayerShape]]]:
    """Return for each call the first column, `conv1` indented, or in full if it is called from outside its parent;
    and the calls directly inside it."""
    texts = {}
    inner = defaultdict[_Call, list[LayerShape]](list)
    around: list[LayerShape] = []
    for row in rows:
        while around and not row.name.startswith(f"{around[-1].name}.".removeprefix(".")):
            around.pop()
        name = row.name.removeprefix(f"{around[-1].name}.") if around else row.name
        call = f"#{row.call}" if row.call else ""
        texts[row.name, row.call] = "  " * len(around) + (name or row.type) + call
        if around:
            inner[around[-1].name, around[-1].call].append(row)
        around.append(row)
    return texts, inner


def _kernel(row: LayerShape) -> str:
    return numbers.shape(row.kernel_size) if row.kernel_size else ""


def _all(shapes: tuple[tuple[int, ...], ...]) -> str:
    return " ".join(numbers.shape(shape) for shape in shapes)


def _output(row: LayerShape) -> str:
    if not row.executed and row.note != INSIDE:
        return "not called"
    if row.output_names:
        named = zip(row.output_names, row.output_shapes, strict=True)
        most = 3 if len(row.output_names) < 4 else 1  # the maps of a pyramid would hide other columns
        return some((f"{name} {numbers.shape(shape)}" for name, shape in named), most)
    return numbers.shapes(row.output_shapes) or "-"


def _params(row: LayerShape) -> str:
    if row.call and row.params:
        return "shared"
    frozen = " frozen" if row.params and not row.trainable_params else ""
    return numbers.count(row.params) + frozen if row.params else ""


def _title(record: SummaryRecord) -> str:
    model, input_info = record.run.model, record.run.input
    shapes = numbers.shapes(input_info.shape) if input_info else ""
    where = "shapes inferred without computing values" if record.run.device == "meta" else record.run.device
    return f"{model.name} ({model.class_name}), input {shapes}, {where}"


def _facts(record: SummaryRecord) -> tuple[tuple[str, str], ...]:
    totals = record.totals
    facts = [
        (
            "parameters",
            f"{numbers.count(totals.params)} ({numbers.count(totals.trainable_params)} trainable)",
        ),
        ("multiply-adds", f"{numbers.short(totals.macs)} MACs, {numbers.short(totals.flops)} FLOPs"),
        ("weights", f"{numbers.memory(totals.param_bytes)} + buffers {numbers.memory(totals.buffer_bytes)}"),
        ("activations", f"{numbers.memory(totals.activation_bytes)} (outputs of all layers)"),
        ("layers", f"{counted(totals.layers, 'layer')}, {counted(totals.calls, 'call')}"),
    ]
    if record.shared:
        facts.append(("shared", f"{some(record.shared, 3)}, counted once"))
    if record.timed_by is not None:
        facts.append(("times", f"medians of several forward passes, measured by {record.timed_by}"))
    if record.training is not None:
        facts += training_facts(record.training, is_on_cpu=record.run.device == "cpu")
    again = [row for row in record.layers if row.call]
    if again:
        n_again, first = len({row.name for row in again}), again[0]
        several = f"{counted(n_again, 'layer')} {'is' if n_again == 1 else 'are'} called more than once"
        facts.append(("#1", f"{label_of(first)} is the second call of {first.name}; {several}"))
    by_reason: dict[str, list[str]] = {}
    for row in record.layers:
        if not row.executed and row.note != INSIDE:
            by_reason.setdefault(row.note or "not with this input", []).append(row.name)
    for reason, names in by_reason.items():
        facts.append(("not called", f"{some(names, 2)}: {reason}"))
    if record.uncounted_ops:
        # torch's name of a batch norm: `_native_batch_norm_legit_no_training x1`
        # And of a pooling of signals: `max_pool2d_with_indices x1`
        extra = r"^_?(native_)?|_legit\w*|_with_indices|(?<=pool)\dd"
        plain = [re.sub(extra, "", one).replace("_", " ") for one in record.uncounted_ops]
        facts.append(("not counted", f"the FLOPs of {some(plain, 6)}, for which torch has no formula"))
    return tuple(facts)


HELP = "would help"


def training_facts(training: TrainingMemory, *, is_on_cpu: bool = False) -> list[tuple[str, str]]:
    size = numbers.memory
    kind = f"{counted(training.batch, 'image')}, {training.optimizer}"
    kind += f", autocast to {training.amp}" if training.amp else ""
    kind += f", as on {training.device}" if training.device != "cpu" else ""
    parts = ", ".join(f"{name} {size(n)}" for name, n in training.at_peak.items())
    facts = [
        ("training step", kind if training.is_fake else f"{kind}, computed with values"),
        ("for the backward pass", f"{size(training.saved_bytes)} saved by autograd, without weights"),
        ("peak", f"{size(training.peak_bytes)} {when_of(training.peak)}: {parts}"),
        *(("assumed", words) for words in training.assumed),
    ]
    fit = training.fit
    if fit is not None:
        facts.append(("fit", fit_words(training)))
        if (n_left := fit.limit_bytes // 2**30 - 1) > 0 and not is_on_cpu:
            facts.append(("on a GPU", f"leave about 1 GiB for CUDA itself: --fit {n_left}GiB"))
    ways = [one for one in training.savings if one.keyword]
    facts += [(HELP, f"{one.what}: {size(one.less_bytes)} less ({one.keyword})") for one in ways]
    return facts


def when_of(level: MemoryLevel) -> str:
    """Return when a level is reached: `in the backward of layer3`."""
    if level.phase == "optimizer":
        return "in the optimizer step"
    where = f" of {level.layer}" if level.layer else ", outside any layer"
    return f"in the {level.phase} pass{where}"


def fit_words(training: TrainingMemory) -> str:
    """Return the answer to `--fit`: `the largest batch is 95 (7.9 GiB; ...); batch 64 fits into 8 GiB`."""
    fit = training.fit
    assert fit is not None

    whose = "CPU" if training.device == "cpu" else training.device
    kernels = f", without the temporary memory of {whose} kernels"
    typed = f" ({fit.limit_bytes / 1e9:g} GB)" * (fit.limit_bytes % 10**6 == 0)
    fits = "fits" if training.batch <= fit.batch else "does not fit"
    given = f"batch {training.batch:,} {fits} into {numbers.memory(fit.limit_bytes)}{typed}"
    if fit.next_bytes is None:
        least = f"{numbers.memory(fit.peak_bytes)}, of {counted(fit.smallest, 'image')}"
        return f"no batch fits: the smallest step needs {least}{kernels}; {given}"
    how = "" if fit.is_computed else ", extrapolated from two smaller batches"
    another = numbers.memory(fit.next_bytes - fit.peak_bytes)
    sizes = f"{numbers.memory(fit.peak_bytes)}; another image needs {another}"
    return f"the largest batch is {fit.batch:,} ({sizes}{how}{kernels}); {given}"
