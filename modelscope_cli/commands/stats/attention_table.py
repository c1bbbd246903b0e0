"""The columns of the table `attention` of `stats`."""

from collections.abc import Sequence

from modelscope_cli.records.naming import label_of
from modelscope_cli.records.stats import AttentionStats
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, figure, percentage


def _label(row: AttentionStats) -> str:
    return label_of(row) + (f" [{row.output}]" if row.output != "attention" else "")


def _share(row: AttentionStats) -> float | None:
    return row.entropy / row.ceiling if row.ceiling else None


COLUMNS = (
    Column("name", "layer", _label, is_number=False, rank=0),
    Column("type", "type", lambda r: r.type, is_number=False, rank=0),
    Column("head", "head", lambda r: r.head, rank=0),
    Column("windows", "windows", lambda r: r.windows, rank=6),
    Column("queries", "queries", lambda r: r.queries, rank=5),
    Column("keys", "keys", lambda r: r.keys, rank=4),
    figure("entropy", "entropy", lambda r: r.entropy, rank=0),
    figure("ceiling", "log(keys)", lambda r: r.ceiling, rank=3),
    percentage("share", "of it", _share, rank=1),
    figure("entropy_min", "lowest", lambda r: r.entropy_min, rank=2),
    figure("entropy_max", "highest", lambda r: r.entropy_max, rank=2),
)

_FACTS = (
    ("entropy", "of the weights of a query, in nats; mean over queries and images, and the extremes"),
    ("log(keys)", "the entropy of attending to all keys equally; 0 is attending to one"),
)


def attention_sheet(title: str, rows: Sequence[AttentionStats]) -> Sheet:
    """Lay out how widely each head looks, in execution order."""
    return Sheet(title, COLUMNS, tuple(rows), _FACTS, is_by_layer=True)


def narrowest_head(rows: Sequence[AttentionStats]) -> tuple[str, str]:
    """Return the line that stands under the other tables."""
    least = min(rows, key=lambda row: _share(row) or 0.0)
    share = numbers.percent(_share(least))
    what = f"narrowest: {_label(least)} head {least.head}, entropy {share} of log(keys)"
    return "attention", f"{len(rows)} heads; {what}  (--table attention)"
