"""The columns of the table `channels` of `stats`: which channels of each layer are dead."""

from collections.abc import Sequence

from modelscope_cli.records.naming import index_ranges, output_label_of
from modelscope_cli.records.stats import ActivationStats
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, percentage

_N_BINS = 16


def _shares(row: ActivationStats) -> list[float]:
    places = row.numel / row.channels if row.channels else 0
    return [zeros / places for zeros in row.channel_zeros or ()] if places else []


def _spread(row: ActivationStats) -> str:
    shares = _shares(row)
    bins = [min(int(share * _N_BINS), _N_BINS - 1) for share in shares]
    return numbers.bars([bins.count(index) for index in range(_N_BINS)]) if shares else ""


COLUMNS = (
    Column("name", "layer", output_label_of, is_number=False, rank=0),
    Column("type", "type", lambda r: r.type, is_number=False, rank=0),
    Column("channels", "channels", lambda r: r.channels, rank=2),
    Column("dead", "dead", lambda r: r.dead_channels, lambda r: f"{r.dead_channels or ''}", rank=0),
    Column(
        "inherited", "inherited", lambda r: r.dead_inherited, lambda r: f"{r.dead_inherited or ''}", rank=2
    ),
    percentage("zero", "zero", lambda r: r.zero_fraction, rank=0),
    Column("zeros", "zeros 0..100 %", lambda r: ",".join(f"{s:.4g}" for s in _shares(r)), _spread, False, 1),
    Column(
        "which",
        "dead channels",
        lambda r: index_ranges(r.dead_indices or ()),
        lambda r: index_ranges(r.dead_indices or ()).replace(",", ", "),
        is_number=False,
        rank=0,
        wraps=True,
    ),
)

_FACTS = (
    ("inherited", "already dead in the output of the layer before, whose channels this one passes on"),
    ("zeros 0..100 %", "how many channels (log counts) are zero at which share of their positions"),
)


def channels_sheet(title: str, rows: Sequence[ActivationStats], images: int) -> Sheet:
    """Lay out the channels of every output that has some, in execution order."""
    shown = tuple(row for row in rows if row.channels and row.dead_channels is not None)
    facts = (*_FACTS, dead_fact(rows, images))
    return Sheet(title, COLUMNS, shown, facts, is_bad=lambda row: bool(row.dead_channels), is_by_layer=True)


def dead_fact(rows: Sequence[ActivationStats], images: int) -> tuple[str, str]:
    """Return the line that counts each dead channel once, and says what little images can tell."""
    dead = sum((row.dead_channels or 0) - (row.dead_inherited or 0) for row in rows)
    inherited = sum(row.dead_inherited or 0 for row in rows)
    text = f"{numbers.count(dead)} (zero at every position of every image)"
    if inherited:
        text += f", not counting {numbers.count(inherited)} that later layers pass on"
    if dead and images == 1:
        text += "; this is one image, other images may activate them"
    return "dead channels", text
