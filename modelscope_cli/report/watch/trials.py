"""How the trials of `watch --try-fixes` are shown: lines below the table, and a table of the page."""

import shlex
from collections.abc import Iterator

from modelscope_cli.errors import commented
from modelscope_cli.records.trials import OWN, TrialRow
from modelscope_cli.records.watch import UNKNOWN, WatchRecord
from modelscope_cli.report.numbers import loss
from modelscope_cli.report.sheet import Sheet, field_columns
from modelscope_cli.rules.training.progress import MIN_STEPS, follow


def trials_sheet(record: WatchRecord) -> Sheet:
    """Return a row for each trial."""
    columns = (
        *field_columns(TrialRow, "name changed steps loss_first loss_last"),
        *field_columns(TrialRow, "measure", is_shown=any(row.measure != OWN for row in record.trials)),
        *field_columns(TrialRow, "metric", is_shown=any(row.metric is not None for row in record.trials)),
        *field_columns(TrialRow, "helps reason"),
    )
    return Sheet(title="trials", columns=columns, rows=record.trials, facts=())


def trial_facts(record: WatchRecord) -> Iterator[tuple[str, str]]:
    """Yield the lines below the table: what follows from the trials, and a line for each; or how to run them."""
    if record.tried is None:
        yield from _how_to_try(record)
        return
    if record.fix is None:
        yield "trials", record.tried
    for row in record.trials:
        words = [f"{row.measure} {loss(row.loss_last)}"] if row.steps else []
        words += [] if row.metric is None else [f"accuracy {row.metric:.2f}"]
        words += [f"over the last fifth of {row.steps} steps"] if row.steps else []
        words += filter(None, [row.helps, row.reason])
        yield row.name, f"{row.changed}: {', '.join(words)}"


def _how_to_try(record: WatchRecord) -> Iterator[tuple[str, str]]:
    progress = follow(record.loss, record.lr, record.facts, record.events)
    is_open = record.verdict == UNKNOWN and record.steps >= MIN_STEPS and record.ranks == 1
    if is_open and not (progress.learns or progress.is_adversarial or progress.moves) and record.run.argv:
        first, *words = record.run.argv
        again = ["--force"] * (any(one.startswith("--out") for one in words) and "--force" not in words)
        command = shlex.join(["modelscope", first, "--try-fixes", *again, *words])
        yield "", f"try: {commented(f'{command}   looks for a change that helps; or train for more steps')}"
