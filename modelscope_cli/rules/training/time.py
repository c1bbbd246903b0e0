"""MS771: what a training waits for. Measured, and silent where little is lost."""

from collections.abc import Iterator

from modelscope_cli.records.findings import WARNING
from modelscope_cli.records.naming import percent
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingSighting, training_rule

_LEAST_S = 5.0  # lost to one thing; below that nothing is worth a change
_LEAST_STEPS = 8


@training_rule("MS771", "waits-for-data", WARNING, 0.3, Link.SPEED, is_alone=True)
def waits_for_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The model waits for data during much of each step.

    Measure: share of the time of all steps after the first, if that is five seconds or more in total
    Source: measured; PyTorch, performance tuning guide: asynchronous data loading
    Hint: use more workers and persistent_workers=True, or make samples load faster
    Why: the device is idle meanwhile, and the run takes longer
    """
    time = case.facts.time
    if time is None or time.steps < _LEAST_STEPS:
        return
    if time.share("data") <= threshold or time.seconds["data"] < _LEAST_S:
        return
    words = f"{percent(time.share('data'))} of each step is spent waiting for "
    if time.workers:
        words += f"{time.workers} worker{'s' * (time.workers > 1)}"
        hint = f"DataLoader(num_workers={2 * time.workers}, persistent_workers=True), or load samples faster"
    else:
        words += "data, which the training process loads itself"
        hint = "DataLoader(num_workers=4, persistent_workers=True), so that it loads while the model computes"
    yield TrainingSighting(None, 1, time.share("data"), words, hint=hint)
