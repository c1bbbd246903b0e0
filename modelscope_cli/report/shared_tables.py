"""Tables of several commands: batch norms in train mode, and the safety of checkpoints."""

from collections.abc import Sequence

from modelscope_cli.errors import UsageError
from modelscope_cli.records.naming import label_of, some
from modelscope_cli.records.progress import Progress
from modelscope_cli.records.run import Notice
from modelscope_cli.records.stats import BatchNormDrift
from modelscope_cli.records.weights import CALL, Safety, ScanRecord, Suspect, WeightsOnly
from modelscope_cli.report import numbers
from modelscope_cli.report.sheet import Column, Sheet, View, field_columns


def _momentum(row: BatchNormDrift) -> str:
    return "1/n" if row.momentum is None else numbers.number(row.momentum)


COLUMNS = (
    Column("name", "layer", label_of, is_number=False, rank=0),
    *field_columns(BatchNormDrift, "type channels"),
    *field_columns(BatchNormDrift, "momentum", text=_momentum),
    *field_columns(BatchNormDrift, "mean_gap var_ratio var_ratio_min var_ratio_max mean_move var_move"),
    *field_columns(BatchNormDrift, "is_frozen", text=lambda r: "frozen" if r.is_frozen else ""),
)


def check_drift(is_training: bool) -> None:
    """Refuse the table outside train mode."""
    if not is_training:
        message = (
            "'--table batch-norm': in eval mode batch norm uses its running statistics, so nothing drifts"
        )
        raise UsageError(message, "--mode train --table batch-norm")


def batch_norm_sheet(title: str, rows: Sequence[BatchNormDrift]) -> Sheet:
    """Return the drift of every batch norm, in execution order."""
    return Sheet(title, COLUMNS, tuple(rows), _FACTS, is_bad=lambda row: row.is_frozen, is_by_layer=True)


def worst_drift(rows: Sequence[BatchNormDrift]) -> tuple[str, str]:
    """Return the fact about the largest drift for the other tables."""
    worst = max(rows, key=lambda row: row.mean_gap)
    far = f"{worst.mean_gap:.3g} standard deviations from the running mean"
    return "batch norm", f"{len(rows)} calls; farthest: {label_of(worst)}, {far}  (--table batch-norm)"


_FACTS = (
    ("mean gap", "batch mean - running mean, in running standard deviations; root mean square over channels"),
    ("var ratio", "batch variance / running variance; geometric mean over channels, lowest and highest"),
    ("moves", "change of the running values by one such batch, at the layer's momentum, in the same units"),
)


_N_UNKNOWN = 8
_N_ERRORS = 3
_LOADS = {
    "yes": "torch.load accepts it with weights_only=True",
    "with names": "torch.load accepts it with weights_only=True once these names are allowed",
    "no": "torch.load does not accept it with weights_only=True",
    "unasked": "it holds no pickle that torch.load would read",
}


def safety_facts(safety: Safety) -> tuple[tuple[str, str], ...]:
    """Return the facts of a checkpoint: every dangerous name, then the verdict."""
    facts = []
    if safety.dangerous:
        facts.append(("dangerous", ", ".join(suspect.name for suspect in safety.dangerous)))
    return (*facts, ("weights only", weights_only(safety.weights_only)))


def warnings_of(safety: Safety) -> tuple[Notice, ...]:
    """Return a warning for every dangerous name, one for all unknown names, and for unread parts."""
    notices = [Notice("dangerous_code", _sentence(suspect)) for suspect in safety.dangerous]
    if safety.calls:
        calls = some([suspect.call or suspect.name for suspect in safety.calls], _N_UNKNOWN)
        notices.append(Notice("foreign_call", f"a full load would call unknown functions: {calls}"))
    if safety.objects:
        names = some([suspect.name for suspect in safety.objects], _N_UNKNOWN)
        notices.append(Notice("foreign_code", f"a full load would run: {names}; it calls none of them"))
    if safety.unread:
        places = some(safety.unread, _N_UNKNOWN)
        notices.append(Notice("more_pickles", f"it holds more pickles than torch.load reads: {places}"))
    if safety.errors:
        errors = some(safety.errors, _N_ERRORS)
        notices.append(Notice("not_read", f"it could not be read to the end: {errors}"))
    return tuple(notices)


def tell_allowed(safety: Safety, progress: Progress) -> None:
    """Report which unknown names a pattern allows."""
    if safety.allowed:
        progress.note(f"allowed in '{safety.file}': {some(safety.allowed, _N_UNKNOWN)}")


def _sentence(suspect: Suspect) -> str:
    return f"dangerous: a full load would run {suspect.call or suspect.name} ({suspect.place}): it {suspect.reason}"


def weights_only(verdict: WeightsOnly) -> str:
    """Return whether torch loads a file with `weights_only=True`."""
    if verdict.loads == "with names":
        return f"{_LOADS[verdict.loads]}: {some(verdict.names, _N_UNKNOWN)}"
    return _LOADS[verdict.loads] + (f": {verdict.reason}" if verdict.reason else "")


def _unknown(safety: Safety) -> list[str]:
    return [(suspect.is_call and suspect.call) or suspect.name for suspect in safety.unknown]


_COLUMNS: tuple[Column, ...] = (
    *field_columns(Safety, "file rank"),
    Column(
        "dangerous",
        "dangerous",
        lambda r: " ".join(suspect.call or suspect.name for suspect in r.dangerous),
        is_number=False,
        rank=0,
        wraps=True,
    ),
    Column(
        "unknown",
        "unknown",
        lambda r: " ".join(_unknown(r)),
        lambda r: some(_unknown(r), 3),
        is_number=False,
        rank=3,
    ),
    Column("weights_only", "weights only", lambda r: r.weights_only.loads, is_number=False, rank=1),
    Column("pickles", "pickles", lambda r: len(r.pickles), rank=4),
    Column(
        "problem",
        "problem",
        lambda r: (
            "; ".join(r.errors) if r.errors else None if r.is_understood else "a format that is not read"
        ),
        lambda r: some(r.errors, 1) if r.errors else "" if r.is_understood else "a format that is not read",
        is_number=False,
        rank=2,
    ),
)


def scan_sheet(record: ScanRecord) -> Sheet:
    """Return the files of a scan, in the order of the folder."""
    n = {rank: sum(file.rank == rank for file in record.files) for rank in ("dangerous", "unknown", "known")}
    counts = ", ".join(f"{n[rank]} {rank}" for rank in n if n[rank]) or "none"
    return Sheet(
        title=f"{record.source}",
        columns=_COLUMNS,
        rows=record.files,
        facts=(("files", f"{len(record.files)}: {counts}"),),
        is_dim=lambda file: not file.pickles and not file.errors and file.is_understood,
        is_bad=lambda file: file.fails(CALL),
    )


def check_scan_columns(view: View) -> None:
    """Refuse unknown columns before anything is read."""
    view.check(_COLUMNS)
