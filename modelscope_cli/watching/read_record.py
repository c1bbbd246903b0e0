"""The record of a run, from its logs: what `watch` returns."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from modelscope_cli.records.keywords import NEAR_ZERO
from modelscope_cli.records.run import ModelInfo, Notice, Run, WeightsInfo, versions
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.rules.training import judge_training
from modelscope_cli.watching.read_series import Gathered, RankLog, gather


def read_outcome(folder: Path, world: int | None = None, elapsed_ms: float = 0.0) -> WatchRecord:
    """Read the logs in a folder, of a run that ended or was killed or still goes on, and judge it.

    Raises:
        UsageError: there is no log (exit 2).
    """
    gathered = gather(folder, world)
    first = gathered.ranks[0]
    steps = max(rank.n_steps for rank in gathered.ranks)
    models = list(dict.fromkeys(row.model for row in gathered.layers))
    script = str(first.begin.get("script", ""))
    weights = WeightsInfo("script", "in training", "the script's own")
    run = Run(
        command="watch",
        argv=tuple(first.begin.get("argv", ())),
        model=ModelInfo("script", script, ", ".join(models), weights),
        input=None,
        device=first.device,
        dtype=first.dtype,
        seed=0,
        versions=versions(),
        warnings=tuple(_notices(gathered, first, script)),
        elapsed_ms=elapsed_ms or float((first.end or {}).get("elapsed_ms", 0.0)),
    )
    record = WatchRecord(
        run=run,
        steps=steps,
        recorded=gathered.recorded,
        exit_code=first.exit_code,
        ranks=len(gathered.ranks),
        near_zero=NEAR_ZERO,
        layers=gathered.layers,
        parameters=gathered.parameters,
        loss=gathered.loss,
        lr=gathered.lr,
        step_ms=gathered.step_ms,
        events=gathered.events,
    )
    return replace(record, findings=judge_training(record))


def _notices(gathered: Gathered, first: RankLog, script: str) -> Iterator[Notice]:
    end = first.end
    kinds = Counter(event.kind for event in gathered.events)
    if end is None:
        yield Notice(
            "killed", f"the log ends at step {first.n_steps} without a last word: the run was killed"
        )
    elif not first.steps and kinds["skipped"]:
        yield Notice("all-skipped", "no step was taken: the gradients were never finite")
    elif not first.steps and end["backward"]:
        missing = "losses by step, learning rates, update ratios and the series of the layers are missing"
        yield Notice(
            "no-optimizer",
            f"{script} ran backward {end['backward']} times, but no optimizer of torch.optim was seen to step (it "
            f"is another library's, or its step is compiled): {missing}",
        )
    elif not first.steps:
        yield Notice(
            "never-trained",
            f"{script} never trained: no optimizer stepped and nothing ran backward; processes that it starts "
            "itself are not watched, those of torchrun are",
        )
    if n := kinds["skipped"]:
        were = "step was" if n == 1 else "steps were"
        yield Notice("skipped", f"{n} {were} skipped by the gradient scaler: gradients were not finite")
    for event in gathered.events:
        if event.kind not in ("skipped", "loss"):  # the latter is a finding
            yield Notice(event.kind, event.message)
