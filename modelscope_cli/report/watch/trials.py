"""How the trials of `watch --try-fixes` are shown: lines below the table, and a table of the page."""

from collections.abc import Iterator

from modelscope_cli.records.trials import TrialRow
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report.numbers import loss
from modelscope_cli.report.sheet import Sheet, field_columns


def trials_sheet(record: WatchRecord) -> Sheet:
    """Return a row for each trial."""
    has_metric = any(row.metric is not None for row in record.trials)
    columns = field_columns(TrialRow, "name changed steps loss_first loss_last")
    columns += (
        *field_columns(TrialRow, "metric", is_shown=has_metric),
        *field_columns(TrialRow, "helps reason"),
    )
    return Sheet(title="trials", columns=columns, rows=record.trials, facts=())


def trial_facts(record: WatchRecord) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table: what follows from the trials, and a line for each."""
    if record.tried is None:
        return
    if record.fix is None:
        yield "trials", record.tried
    for row in record.trials:
        words = [f"loss {loss(row.loss_last)}"] if row.steps else []
        if row.metric is not None:
            words.append(f"accuracy {row.metric:.2f}")
        words += [f"after {row.steps} steps"] if row.steps else []
        words += filter(None, [row.helps, row.reason])
        yield row.name, f"{row.changed}: {', '.join(words)}"
