"""The columns of `stats`."""

from collections.abc import Sequence

from modelscope_cli.commands.stats.attention_table import COLUMNS as ATTENTION_COLUMNS
from modelscope_cli.commands.stats.attention_table import attention_sheet, narrowest_head
from modelscope_cli.commands.stats.channels_table import COLUMNS as CHANNEL_COLUMNS
from modelscope_cli.commands.stats.channels_table import channels_sheet, dead_fact
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.stats import ActivationStats, StatsRecord, quantiles_in
from modelscope_cli.report import numbers
from modelscope_cli.report.batch_norm_table import COLUMNS as BATCH_NORM_COLUMNS
from modelscope_cli.report.batch_norm_table import batch_norm_sheet, worst_drift
from modelscope_cli.report.facts import certificate_facts, hook_facts, not_called_facts
from modelscope_cli.report.headline import headline
from modelscope_cli.report.input_facts import input_facts
from modelscope_cli.report.sheet import Column, Sheet, choose_columns

_TABLES = {"batch-norm": BATCH_NORM_COLUMNS, "attention": ATTENTION_COLUMNS, "channels": CHANNEL_COLUMNS}
# What has to be computed for a table beside what it has a pass of its own for.
_NEEDED = {"channels": ("zero", "dead", "channel_zeros")}


def columns_of(table: str, wanted: str | None) -> tuple[str, ...] | None:
    """Return the keys of the columns that were listed; None for all of them.

    Raises:
        UsageError: an unknown column (exit 2).
    """
    if table in _TABLES:
        choose_columns(_TABLES[table], wanted)
        return _NEEDED.get(table, ())
    if wanted is None:
        return None
    every = stats_columns(True, True, True, _named(wanted) or ("p50",))  # for who asks what there is
    return tuple(column.key for column in choose_columns(every, wanted))


def stats_sheet(record: StatsRecord, columns: str | None = None, table: str = "layers") -> Sheet:
    """Lay out the statistics, one row per output of each call in execution order; or another table."""
    title = headline(record.run, record.images, "train mode" if record.mode == "train" else "")
    if table == "batch-norm":
        return batch_norm_sheet(title, record.batch_norm, columns)
    if table == "attention":
        return attention_sheet(title, record.attention, columns)
    if table == "channels":
        return channels_sheet(title, record.layers, record.images, columns)
    rows = record.layers
    has_non_finite = any(row.nan_count or row.inf_count for row in rows)
    has_dead = any(row.dead_channels for row in rows)
    quantiles = tuple(next((row.quantiles for row in rows if row.quantiles), ()))
    has_correlation = any(row.correlation for row in rows)
    every = stats_columns(has_non_finite, has_dead, has_correlation, quantiles or _named(columns))
    return Sheet(
        title=title,
        columns=choose_columns(every, columns),
        rows=rows,
        facts=_facts(record),
        is_bad=lambda row: bool(row.nan_count or row.inf_count or row.problem),
    )


def _named(columns: str | None) -> tuple[str, ...]:
    return quantiles_in(part.strip().lower() for part in (columns or "").split(","))


def stats_columns(
    has_non_finite: bool, has_dead: bool, has_correlation: bool, quantiles: Sequence[str] = ()
) -> tuple[Column, ...]:
    """All columns of `stats`, with these quantiles; those with nothing to tell are left out of a person's table."""
    return (
        Column("name", "layer", _label, is_number=False, rank=0),
        Column("type", "type", lambda r: r.type, is_number=False, rank=7),
        Column("shape", "shape", lambda r: numbers.shape(r.shape), is_number=False, rank=9),
        Column("mean", "mean", lambda r: r.mean, lambda r: r.problem or numbers.number(r.mean), rank=0),
        Column("std", "std", lambda r: r.std, lambda r: numbers.number(r.std), rank=0),
        Column("mad", "mad", lambda r: r.mad, lambda r: numbers.number(r.mad), rank=11),
        Column("min", "min", lambda r: r.min, lambda r: numbers.number(r.min), rank=4),
        Column("max", "max", lambda r: r.max, lambda r: numbers.number(r.max), rank=3),
        Column("rms", "rms", lambda r: r.rms, lambda r: numbers.number(r.rms), rank=10),
        *map(_quantile, quantiles),
        Column("zero", "zero", lambda r: r.zero_fraction, lambda r: numbers.percent(r.zero_fraction), rank=5),
        Column(
            "near_zero",
            "near 0",
            lambda r: r.near_zero_fraction,
            lambda r: numbers.percent(r.near_zero_fraction),
            rank=8,
        ),
        Column("nan", "NaN", lambda r: r.nan_count, rank=0, is_shown=has_non_finite),
        Column("inf", "inf", lambda r: r.inf_count, rank=0, is_shown=has_non_finite),
        Column("dead", "dead", lambda r: r.dead_channels, _dead, rank=2, is_shown=has_dead),
        Column("histogram", "histogram", _counts, _bars, is_number=False, rank=1),
        Column("correlation", "corr", _correlation, _corr_text, rank=2, is_shown=has_correlation),
        Column("numel", "numel", lambda r: r.numel, is_shown=False),
        Column("dtype", "dtype", lambda r: r.dtype, is_number=False, is_shown=False),
        Column("order", "order", lambda r: r.order, is_shown=False),
        Column("channels", "channels", lambda r: r.channels, is_shown=False),
    )


def _quantile(key: str) -> Column:
    def value(row: ActivationStats) -> float | None:
        return (row.quantiles or {}).get(key)

    return Column(key, key, value, lambda row: numbers.number(value(row)), rank=1)


def _label(row: ActivationStats) -> str:
    return label_of(row) + (f" [{row.output}]" if row.output else "")


def _dead(row: ActivationStats) -> str:
    return f"{row.dead_channels}/{row.channels}" if row.dead_channels else ""


def _counts(row: ActivationStats) -> str | None:
    return ",".join(map(str, row.histogram.counts)) if row.histogram else None


def _bars(row: ActivationStats) -> str:
    return numbers.bars(row.histogram.counts) if row.histogram else ""


def _correlation(row: ActivationStats) -> float | None:
    return row.correlation.mean_abs if row.correlation else None


def _corr_text(row: ActivationStats) -> str:
    return numbers.number(_correlation(row))


def _facts(record: StatsRecord) -> tuple[tuple[str, str], ...]:
    facts = [*input_facts(record.inputs), ("near 0", f"|x| < {record.near_zero:g}")]
    if any(row.dead_channels is not None for row in record.layers):
        facts.append(dead_fact(record.layers, record.images))
    if any(row.histogram and row.histogram.sampled for row in record.layers):
        facts.append(("histogram", "log counts; of an even sample where a batch has over 262,144 values"))
    else:
        facts.append(("histogram", "log counts"))
    facts += hook_facts(record.hooks)
    if record.batch_norm:
        facts.append(worst_drift(record.batch_norm))
    if record.attention:
        facts.append(narrowest_head(record.attention))
    facts += not_called_facts(record.not_called)
    facts += certificate_facts(record.certificate)
    return tuple(facts)
