"""The columns of the batch-norm table of `stats` and `grads` in train mode."""

from collections.abc import Sequence

from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import label_of
from modelscope_cli.records.stats import BatchNormDrift
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, figure


def _momentum(row: BatchNormDrift) -> str:
    return "1/n" if row.momentum is None else numbers.number(row.momentum)


COLUMNS = (
    Column("name", "layer", label_of, is_number=False, rank=0),
    Column("type", "type", lambda r: r.type, is_number=False, rank=0),
    Column("channels", "channels", lambda r: r.channels, rank=6),
    Column("momentum", "momentum", lambda r: r.momentum, _momentum, rank=5),
    figure("mean_gap", "mean gap", lambda r: r.mean_gap, rank=0),
    figure("var_ratio", "var ratio", lambda r: r.var_ratio, rank=0),
    figure("var_ratio_min", "lowest", lambda r: r.var_ratio_min, rank=3),
    figure("var_ratio_max", "highest", lambda r: r.var_ratio_max, rank=3),
    figure("mean_move", "mean moves", lambda r: r.mean_move, rank=1),
    figure("var_move", "var moves", lambda r: r.var_move, rank=1),
    Column(
        "is_frozen", "frozen", lambda r: r.is_frozen, lambda r: "frozen" if r.is_frozen else "", False, rank=2
    ),
)


def check_drift(is_training: bool) -> None:
    """Refuse the table where there is nothing to show.

    Raises:
        UsageError: eval mode (exit 2).
    """
    if not is_training:
        message = (
            "'--table batch-norm': in eval mode batch norm uses its running statistics, so nothing drifts"
        )
        raise UsageError(message, "--mode train --table batch-norm")


def batch_norm_sheet(title: str, rows: Sequence[BatchNormDrift]) -> Sheet:
    """Lay out the drift of every batch norm, in execution order."""
    return Sheet(title, COLUMNS, tuple(rows), _FACTS, is_bad=lambda row: row.is_frozen, is_by_layer=True)


def worst_drift(rows: Sequence[BatchNormDrift]) -> tuple[str, str]:
    """Return the line that stands under the other tables."""
    worst = max(rows, key=lambda row: row.mean_gap)
    far = f"{worst.mean_gap:.3g} standard deviations from the running mean"
    return "batch norm", f"{len(rows)} calls; farthest: {label_of(worst)}, {far}  (--table batch-norm)"


_FACTS = (
    ("mean gap", "batch mean - running mean, in running standard deviations; root mean square over channels"),
    ("var ratio", "batch variance / running variance; geometric mean over channels, lowest and highest"),
    ("moves", "how far one such batch moves the running values, at the layer's momentum, in the same units"),
)
