"""The record that `watch` returns, from the logs of a run."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from modelscope_cli.interrupts import INTERRUPTED
from modelscope_cli.records.naming import NEAR_ZERO
from modelscope_cli.records.run import ModelInfo, Notice, Run, WeightsInfo, versions
from modelscope_cli.records.watch import CRASHED, NEVER_TRAINED, RUNNING, TOLD, WatchRecord
from modelscope_cli.rules.training import judge_training
from modelscope_cli.rules.training.rule_types import Course
from modelscope_cli.watching.log import Entry
from modelscope_cli.watching.rank_log import RankLog
from modelscope_cli.watching.read_series import RunSeries, read_series


def read_record(folder: Path) -> WatchRecord:
    """Read the logs in a folder and judge the run, which may have ended, been killed or still be running."""
    return record_of(read_series(folder))


def record_of(series: RunSeries, *, is_running: bool = False) -> WatchRecord:
    """Return the record of a run with its findings; the log of one that goes on has no end."""
    first = series.ranks[0]
    trained = (row.model for row in series.parameters if row.model != row.optimizer)
    models = ", ".join(dict.fromkeys((*(row.model for row in series.layers), *trained)))
    run = Run(
        command="watch",
        argv=first.begin.get("argv", ()),
        model=_model(first.begin, models),
        input=None,
        device=first.device,
        dtype=first.dtype,
        seed=None,
        versions=versions(),
        warnings=tuple(_notices(series, first, is_running)),
        elapsed_ms=(first.end or {}).get("elapsed_ms", 0.0),
    )
    trials = first.trials
    record = WatchRecord(
        run=run,
        recorded=series.recorded,
        exit_code=first.exit_code,
        ranks=len(series.ranks),
        near_zero=NEAR_ZERO,
        facts=series.facts,
        **{one.name: getattr(series, one.name) for one in fields(Course)},
        trials=trials.rows,
        fix=trials.fix,
        tried=trials.outcome,
    )
    judged = judge_training(series, series.facts, trials)
    crash = next((found for rank in series.ranks if (found := (rank.end or {}).get("crash"))), None)
    crashed = CRASHED, f"crashed at step {series.steps}{crash}"
    verdict, reason = crashed if crash else (judged.verdict, judged.reason)
    if first.exit_code == INTERRUPTED and not crash:
        reason = "; ".join(filter(None, (f"interrupted at step {series.steps}", reason)))
    return replace(record, findings=judged.findings, verdict=verdict, reason=reason)


def _model(begin: Entry, models: str) -> ModelInfo:
    """Return the origin of the models: a script, or the caller's own loop."""
    name = str(begin.get("script", ""))
    if begin.get("source") == "object":
        return ModelInfo("object", name, models or name, WeightsInfo("object", "in training", "handed over"))
    return ModelInfo("script", name, models, WeightsInfo("script", "in training", "the script's own"))


def _notices(series: RunSeries, first: RankLog, is_running: bool) -> Iterator[Notice]:
    end, script = first.end, str(first.begin.get("script", ""))
    kinds = Counter(event.kind for event in series.events)
    if end is None and is_running:
        yield Notice(
            RUNNING, f"the run was still going at {time.strftime('%H:%M:%S')}, at step {first.n_steps}"
        )
    elif not first.begin:
        yield Notice(NEVER_TRAINED, "nothing is watched yet: put the loop in `with watch(...) as watched:`")
    elif end is None:
        yield Notice("killed", f"the log ends unfinished at step {first.n_steps}: the run was killed")
    elif not first.steps and kinds["skipped"]:
        yield Notice("all-skipped", "no step was taken: the gradients were never finite")
    elif first.steps or end.get("backward"):
        pass  # what is missing is the reason of the verdict
    elif first.exit_code:
        crash = end.get("crash") or ""  # ` in layer 3 ...`, or `: KeyError ...`
        how = "crashed" if crash else f"ended with exit code {first.exit_code}"
        how += " before it trained anything" + "," * crash.startswith(" ") + crash
        yield Notice(NEVER_TRAINED, f"{script} {how}")
    else:
        others = "; processes started by the script are not watched, unlike those of torchrun"
        message = f"{script} never trained: no optimizer stepped and nothing ran backward"
        yield Notice(NEVER_TRAINED, message + ("" if first.begin.get("source") == "object" else others))
    if n := kinds["skipped"]:
        were = "step was" if n == 1 else "steps were"
        yield Notice("skipped", f"{n} {were} skipped by the gradient scaler: gradients were not finite")
    for event in series.events:
        if event.kind in TOLD:
            yield Notice(event.kind, event.message)
