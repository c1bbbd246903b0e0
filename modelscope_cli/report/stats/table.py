"""The tables of `stats`: layers, attention heads, channels."""

import math
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from modelscope_cli.records.naming import counted, is_rectifier, output_label_of, some
from modelscope_cli.records.stats import ActivationStats, StatsRecord, quantiles_in
from modelscope_cli.report import numbers
from modelscope_cli.report.numbers import headline, hook_facts, input_facts, not_called_facts
from modelscope_cli.report.shared_tables import COLUMNS as BATCH_NORM_COLUMNS
from modelscope_cli.report.shared_tables import batch_norm_sheet, worst_drift
from modelscope_cli.report.sheet import (
    Column,
    Layout,
    Sheet,
    field_columns,
    figure,
    other_columns,
)

# Layers that only pass on what others output, flattened or not.
_PASSING = ("Flatten", "Unflatten", "Dropout", "Identity")


def dead_fact(record: StatsRecord) -> tuple[str, str]:
    """Return the fact that counts each dead channel once, where there are enough values to call it dead."""
    from modelscope_cli.rules.activations import ENOUGH_IMAGES, ENOUGH_VALUES, NO_RECTIFIER, is_enough

    rows = [row for row in record.layers if not row.type.startswith(_PASSING)]
    finite = [row for row in rows if not row.nan_count]
    judged = [row for row in finite if is_enough(row, record.images)]
    dead = sum((row.dead_channels or 0) - (row.dead_inherited or 0) for row in judged)
    where = "in this image (another may activate them)" if record.images == 1 else "in all images"
    if not dead and not any(is_rectifier(row.type) for row in record.layers):
        return "dead channels", f"not judged: {NO_RECTIFIER}"
    parts = [f"{numbers.count(dead)}, zero at every position {where}" if dead else "none"] * bool(judged)
    if len(finite) < len(rows):
        parts.append(f"{counted(len(rows) - len(finite), 'layer')} not judged (NaN)")
    if n_short := sum(row.dead_channels is not None and row not in judged for row in finite):
        few = f"fewer than {ENOUGH_VALUES:,} values a channel, give {ENOUGH_IMAGES} images"
        parts.append(f"{counted(n_short, 'layer')} not judged ({few})")
    return "dead channels", "; ".join(parts)


def non_finite_fact(rows: Sequence[ActivationStats]) -> Iterator[tuple[str, str]]:
    """Yield the fact that tells where NaN and infinite values begin, if there are any."""
    broken = [row for row in rows if row.nan_count or row.inf_count]
    if broken:
        n, numel = (broken[0].nan_count or 0) + (broken[0].inf_count or 0), broken[0].numel
        where = f"{output_label_of(broken[0])}, {n:,} of {numel:,} values; in {counted(len(broken), 'layer')}"
        yield "NaN or infinite", f"first in {where}"


def columns_of(table: str, layout: Layout) -> tuple[str, ...] | None:
    """Return the keys of the listed columns and of the sort column; None for all of them."""
    if table == "batch-norm":
        layout.check(BATCH_NORM_COLUMNS)
        return ()
    quantiles = quantiles_in(re.split("[,:]", f"{layout.columns or ''},{layout.sort or ''}".lower()))
    chosen = layout.check(stats_columns(True, True, quantiles or ("p50",)))  # if a column is unknown
    is_asked = layout.columns is not None or quantiles
    return tuple(column.key for column in chosen) if is_asked else None


def stats_sheet(record: StatsRecord, table: str = "layers", wanted: Sequence[str] = ()) -> Sheet:
    """Return the statistics, one row per output of each call in execution order; or another table."""
    title = headline(record.run, record.images, "train mode" if record.mode == "train" else "")
    if table == "batch-norm":
        return batch_norm_sheet(title, record.batch_norm)
    rows = record.layers
    has_non_finite = any(row.nan_count or row.inf_count for row in rows)
    has_dead = any(row.dead_channels for row in rows)
    quantiles = tuple(next((row.quantiles for row in rows if row.quantiles), ()))
    every = stats_columns(has_non_finite, has_dead, quantiles or quantiles_in(wanted), record.images)
    return Sheet(
        title=title,
        columns=_in_one_form(every, rows, {*_MAGNITUDES, *quantiles}),
        rows=rows,
        facts=_facts(record),
        definitions=("near zero", "histogram"),
        is_bad=lambda row: _is_marked(row, record.images),
        is_by_layer=True,
    )


_MAGNITUDES = ("mean", "std", "mad", "min", "max", "rms")  # of the values of a layer, in one unit


def _in_one_form(
    columns: Sequence[Column], rows: Sequence[ActivationStats], keys: Set[str]
) -> tuple[Column, ...]:
    """Return the columns with the same number of decimals in all of `keys`; numbers too small for it as 1.2e-05.

    Where that takes powers of ten, each column keeps a notation of its own.
    """
    values = [column.value(row) for column in columns if column.key in keys for row in rows]
    write = numbers.notation([value for value in values if isinstance(value, int | float)])
    if any("e" in write(value) for value in values if isinstance(value, float)):
        return tuple(columns)

    def text(value: float | None) -> str:
        texts = write(value)
        return f"{value:.1e}" if value and math.isfinite(value) and not texts.strip("+-0.") else texts

    return tuple(replace(one, notation=lambda _: text) if one.key in keys else one for one in columns)


def answer(record: StatsRecord) -> str:
    """Return how many layers are marked, dead channels, and NaN and infinities."""
    rows = record.layers
    marked = [output_label_of(row) for row in rows if _is_marked(row, record.images)]
    n_bad = sum((row.nan_count or 0) + (row.inf_count or 0) for row in rows)
    words = [
        f"{len(marked)} of {counted(len(rows), 'layer')} marked" + (f" ({some(marked, 3)})" if marked else "")
    ]
    if any(row.dead_channels is not None for row in rows):
        words.append(": ".join(dead_fact(record)))
    words.append(f"{n_bad:,} values are NaN or infinite" if n_bad else "no NaN, no infinity")
    unread = sum(bool(row.problem) for row in rows)
    words += [f"{counted(unread, 'layer')} not measured"] if unread else []
    return "; ".join(words)


def stats_columns(
    has_non_finite: bool, has_dead: bool, quantiles: Sequence[str] = (), images: int = 0
) -> tuple[Column, ...]:
    """Return all columns of `stats`, with these quantiles; empty ones are hidden in the terminal."""
    listed = (
        Column("name", "layer", output_label_of, is_number=False, rank=0),
        *field_columns(ActivationStats, "type shape"),
        *field_columns(ActivationStats, "mean", text=lambda r: r.problem or ""),
        *field_columns(ActivationStats, "std"),
        *field_columns(ActivationStats, "mad", is_shown=False),
        *field_columns(ActivationStats, "min max"),
        *field_columns(ActivationStats, "rms", is_shown=False),
        *map(lambda key: figure(key, key, lambda row: (row.quantiles or {}).get(key), rank=1), quantiles),
        *field_columns(ActivationStats, "zero", is_bad=_is_silent),
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
        Column("histogram", "histogram", _counts, _bars, is_number=False, rank=6),
        *field_columns(ActivationStats, "numel dtype order"),
        *field_columns(ActivationStats, "channels", rank=1, is_shown=False),
    )
    return (*listed, *other_columns(ActivationStats, listed))


def every_column() -> tuple[Column, ...]:
    """Return the columns of all tables except batch norms."""
    return stats_columns(True, True)


def _is_marked(row: ActivationStats, images: int) -> bool:
    is_broken = row.nan_count or row.inf_count or row.problem
    return bool(is_broken) or _is_silent(row) or _is_mostly_dead(row, images)


def _is_silent(row: ActivationStats) -> bool:
    from modelscope_cli.rules import activations

    return activations.is_silent(row)


def _is_mostly_dead(row: ActivationStats, images: int) -> bool:
    from modelscope_cli.rules import activations  # the slowest import for listing columns

    return activations.is_mostly_dead(row) and activations.is_enough(row, images)


def _counts(row: ActivationStats) -> str | None:
    return ",".join(map(str, row.histogram.counts)) if row.histogram else None


def _bars(row: ActivationStats) -> str:
    return numbers.bars(row.histogram.counts) if row.histogram else ""


def _facts(record: StatsRecord) -> tuple[tuple[str, str], ...]:
    facts = [
        *input_facts(record.inputs),
        *non_finite_fact(record.layers),
        ("near zero", f"the share of values with |x| < {record.near_zero:g}"),
    ]
    if any(row.dead_channels is not None for row in record.layers):
        facts.append(dead_fact(record))
    is_sampled = any(row.histogram and row.histogram.sampled for row in record.layers)
    sample = "; estimated from a sample where a batch has over 262,144 values" if is_sampled else ""
    facts.append(("histogram", f"bar height is the logarithm of the count{sample}"))
    facts += hook_facts(record.hooks)
    if record.batch_norm:
        facts.append(worst_drift(record.batch_norm))
    facts += not_called_facts(record.not_called)
    return tuple(facts)
