"""The tables of `stats`: layers, attention heads, channels."""

import math
import re
import shlex
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from modelscope_cli.records.naming import counted, is_rectifier, output_label_of, rounded, some
from modelscope_cli.records.stats import ActivationStats, StatsRecord, quantiles_in
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import drift_facts, headline, hook_facts, input_facts, not_called_facts
from modelscope_cli.report.sheet import Column, Layout, Sheet, field_columns, figure, other_columns

_FAR = 1e3  # times the standard deviation of the first layer, from which it is told
# Layers that only pass on what others output, flattened or not.
_MOST_NAMED = 5  # dead channels of a layer
_PASSING = ("Flatten", "Unflatten", "Dropout", "Identity")


def dead_fact(record: StatsRecord) -> tuple[str, str]:
    """Return the fact that counts each dead channel once, where there are enough values to call it dead."""
    from modelscope_cli.rules.activations import ENOUGH_IMAGES, NO_RECTIFIER, is_enough

    rows = [row for row in record.layers if not row.type.startswith(_PASSING)]
    finite = [row for row in rows if not row.nan_count]
    judged = [row for row in finite if row.dead_channels == 0 or is_enough(row, record.images)]
    short = [row for row in finite if row.dead_channels and row not in judged]
    new = [
        (row, new_dead(row, before))
        for row, before in zip(record.layers, [None, *record.layers], strict=False)
    ]
    dead, unsure = (sum(n for row, n in new if row in group) for group in (judged, short))
    where = "in this image (another may activate them)" if record.images == 1 else "in all images"
    if not dead and not any(is_rectifier(row.type) for row in record.layers):
        return "dead channels", f"not judged: {NO_RECTIFIER}"
    parts = [f"{numbers.count(dead)} zero at every position {where}{_most(judged)}"] if dead else []
    parts += ["none"] * bool(judged and not dead and not unsure)
    if len(finite) < len(rows):
        parts.append(f"{counted(len(rows) - len(finite), 'layer')} not judged (NaN)")
    if short:
        these = "this image" if record.images == 1 else f"these {record.images} images"
        zero = f"{numbers.count(unsure)} zero in {these}{_most(short)}; " if unsure else ""
        layers = counted(len(short), "layer")
        parts.append(f"{zero}{layers} not judged: too few values, give {ENOUGH_IMAGES} images")
    return "dead channels", "; ".join(parts)


def new_dead(row: ActivationStats, before: ActivationStats | None) -> int:
    """Return how many dead channels the call before does not have: norms, pools and activations pass them on."""
    is_next = before is not None and (before.order + 1, before.channels) == (row.order, row.channels)
    if before is None or not is_next or row.type.startswith(("Conv", "Linear")):
        return row.dead_channels or 0
    return len({*(row.dead_indices or ())} - {*(before.dead_indices or ())})


def _most(rows: Sequence[ActivationStats]) -> str:
    worst = max(rows, key=lambda row: (row.dead_channels or 0) / (row.channels or 1))
    indices = worst.dead_indices or ()
    is_few = 0 < len(indices) <= _MOST_NAMED
    which = f": channel{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}" * is_few
    return f", most in {output_label_of(worst)} ({worst.dead_channels} of {worst.channels}{which})"


def non_finite_fact(record: StatsRecord) -> Iterator[tuple[str, str]]:
    """Yield the fact that tells where NaN and infinite values begin, if there are any."""
    broken = [row for row in record.layers if row.nan_count or row.inf_count]
    n_given = sum(one.nan_count + one.inf_count for one in record.inputs)
    if n_given:
        yield (
            "NaN or infinite",
            f"{counted(n_given, 'value')} of the input; in {counted(len(broken), 'layer')}",
        )
    elif broken:
        n, numel = (broken[0].nan_count or 0) + (broken[0].inf_count or 0), broken[0].numel
        where = f"{output_label_of(broken[0])}, {n:,} of {numel:,} values; in {counted(len(broken), 'layer')}"
        yield "NaN or infinite", f"first in {where}"


def scale_fact(rows: Sequence[ActivationStats]) -> Iterator[tuple[str, str]]:
    """Yield how far the standard deviation grows or falls from the first layer on, if a thousand times.

    It has to fall in most of the second half: side branches may begin with next to nothing, and the bias of the
    last layers hide it.
    """
    spread = [(row.std, output_label_of(row)) for row in rows if row.std]
    late = sorted(spread[len(spread) // 2 :])
    for does, (std, name) in (("grows", max(spread)), ("falls", min(spread))) if spread else ():
        first, where = spread[0]
        times = std / first if does == "grows" else first / std
        if times >= _FAR and (does == "grows" or first / late[len(late) // 2][0] >= _FAR):
            ends = f"{numbers.number(first)} ({where}) to {numbers.number(std)} ({name})"
            yield "scale", f"the standard deviation {does} from {ends}, {rounded(times)}x"


def columns_of(layout: Layout) -> tuple[str, ...] | None:
    """Return the keys of the listed columns and of the sort column; None for all of them."""
    quantiles = quantiles_in(re.split("[,:]", f"{layout.columns or ''},{layout.sort or ''}".lower()))
    chosen = layout.check(stats_columns(True, True, quantiles or ("p50",)))  # if a column is unknown
    is_asked = layout.columns is not None or quantiles
    return tuple(column.key for column in chosen) if is_asked else None


def stats_sheet(record: StatsRecord, wanted: Sequence[str] = ()) -> Sheet:
    """Return the statistics, one row per output of each call in execution order."""
    rows = record.layers
    has_non_finite = any(row.nan_count or row.inf_count for row in rows)
    has_dead = any(row.dead_channels for row in rows)
    quantiles = tuple(next((row.quantiles for row in rows if row.quantiles), ()))
    every = stats_columns(has_non_finite, has_dead, quantiles or quantiles_in(wanted), record.images)
    return Sheet(
        title=headline(record.run, record.images, f"{record.mode} mode"),
        columns=_in_one_form(every, rows, {*_MAGNITUDES, *quantiles}),
        rows=rows,
        facts=_facts(record),
        definitions=("near zero", "histogram"),
        is_bad=lambda row: _is_marked(row, record.images),
        is_by_layer=True,
    )


_MAGNITUDES = ("mean", "std", "min", "max", "rms")  # of the values of a layer, in one unit


def _in_one_form(
    columns: Sequence[Column], rows: Sequence[ActivationStats], keys: Set[str]
) -> tuple[Column, ...]:
    """Return the columns with the same number of decimals in all of `keys`, or powers of ten where needed."""
    values = [column.value(row) for column in columns if column.key in keys for row in rows]
    write = numbers.notation([value for value in values if isinstance(value, int | float)])
    if any("e" in write(value) for value in values if isinstance(value, float)):
        return tuple(columns)

    def text(value: float | None) -> str:
        texts = write(value)
        return f"{value:.1e}" if value and math.isfinite(value) and not texts.strip("+-0.") else texts

    return tuple(replace(one, notation=lambda _: text) if one.key in keys else one for one in columns)


def answer(record: StatsRecord) -> str:
    """Return how many layers are marked, of several images dead channels, and NaN and infinities."""
    rows = record.layers
    marked = [output_label_of(row) for row in rows if _is_marked(row, record.images)]
    n_bad = sum((row.nan_count or 0) + (row.inf_count or 0) for row in rows)
    words = [
        f"{len(marked)} of {counted(len(rows), 'layer')} marked" + (f" ({some(marked, 3)})" if marked else "")
    ]
    if record.images > 1 and any(row.dead_channels is not None for row in rows):
        words.append(": ".join(dead_fact(record)))
    words.append(f"{counted(n_bad, 'value')} NaN or infinite" if n_bad else "no NaN, no infinity")
    unread = sum(bool(row.problem) for row in rows)
    words += [f"{counted(unread, 'layer')} not measured"] if unread else []
    return "; ".join(words)


def stats_columns(
    has_non_finite: bool, has_dead: bool, quantiles: Sequence[str] = (), images: int = 0
) -> tuple[Column, ...]:
    """Return all columns of `stats`, with these quantiles; empty ones are hidden in the terminal."""
    listed = (
        Column("name", "layer", output_label_of, is_number=False, rank=0),
        *field_columns(ActivationStats, "type"),
        *field_columns(ActivationStats, "calls", text=lambda r: f"{r.calls}" if r.calls > 1 else ""),
        *field_columns(ActivationStats, "shape", text=lambda r: numbers.shapes(r.shapes or (r.shape,))),
        *field_columns(ActivationStats, "mean", text=lambda r: r.problem or ""),
        *field_columns(ActivationStats, "std"),
        *field_columns(ActivationStats, "min max"),
        *field_columns(ActivationStats, "rms", is_shown=False),
        *map(lambda key: figure(key, key, lambda row: (row.quantiles or {}).get(key), rank=1), quantiles),
        *field_columns(ActivationStats, "zero", is_bad=lambda row: row.zero_fraction == 1),
        *field_columns(ActivationStats, "near_zero"),
        *field_columns(ActivationStats, "nan inf", is_shown=has_non_finite),
        *field_columns(
            ActivationStats,
            "dead",
            text=lambda r: f"{r.dead_channels}/{r.channels}" if r.dead_channels else "",
            is_shown=has_dead,
            is_bad=lambda row: _is_mostly_dead(row, images),
            rank=1,
        ),
        Column(
            "histogram",
            "histogram",
            lambda r: ",".join(map(str, r.histogram.counts)) if r.histogram else None,
            lambda r: numbers.bars(r.histogram.counts) if r.histogram else "",
            is_number=False,
            rank=6,
        ),
        *field_columns(ActivationStats, "numel dtype order"),
        *field_columns(ActivationStats, "channels", rank=1, is_shown=False),
    )
    return (*listed, *other_columns(ActivationStats, listed))


def _is_marked(row: ActivationStats, images: int) -> bool:
    is_broken = row.nan_count or row.inf_count or row.problem
    return bool(is_broken) or row.zero_fraction == 1 or _is_mostly_dead(row, images)


def _is_mostly_dead(row: ActivationStats, images: int) -> bool:
    from modelscope_cli.rules import activations  # the slowest import for listing columns

    return activations.is_mostly_dead(row) and activations.is_enough(row, images)


def _facts(record: StatsRecord) -> tuple[tuple[str, str], ...]:
    facts = [
        *input_facts(record.inputs),
        *non_finite_fact(record),
        *scale_fact(record.layers),
        ("near zero", f"the share of values with |x| < {record.near_zero:g}"),
    ]
    if any(row.dead_channels is not None for row in record.layers):
        facts.append(dead_fact(record))
    if again := next((row.name for row in record.layers if row.calls > 1), None):
        each = shlex.quote(f"{again}@1..-1")
        facts.append(("calls", f"one row for all calls of a layer in a pass; -l {each} shows each"))
    is_sampled = any(row.histogram and row.histogram.sampled for row in record.layers)
    sample = "; estimated from a sample where a batch has over 262,144 values" if is_sampled else ""
    facts.append(("histogram", f"bar height is the logarithm of the count{sample}"))
    facts += hook_facts(record.hooks)
    facts += drift_facts(record.batch_norm)
    facts += not_called_facts(record.not_called)
    return tuple(facts)
