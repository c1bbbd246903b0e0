"""MS771 to MS773: what a training waits for. Measured, and silent where little time is lost."""

from collections.abc import Iterator

from modelscope_cli.records.check import WARNING
from modelscope_cli.records.training_facts import TimeFacts
from modelscope_cli.rules.training.rule_types import Case, Link, TrainingRule, TrainingSighting

_LEAST_S = 5.0  # lost to one thing; below that nothing is worth a change
_LEAST_STEPS = 8


def _time(case: Case) -> TimeFacts | None:
    time = case.facts.time
    return time if time is not None and time.steps >= _LEAST_STEPS and time.total else None


def waits_for_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.share("data") <= threshold or time.seconds["data"] < _LEAST_S:
        return
    words = f"{time.share('data'):.0%} of each step waits for "
    if time.workers:
        words += f"{time.workers} worker{'s' * (time.workers > 1)}"
        hint = (
            f"DataLoader(num_workers={2 * time.workers}, persistent_workers=True), or make a sample quicker"
        )
    else:
        words += "data, which the training itself loads"
        hint = "DataLoader(num_workers=4, persistent_workers=True), so that it loads while the model computes"
        if time.images:
            words += f": {1000 * time.seconds['data'] / time.images:.3g} ms an image"
    yield TrainingSighting(None, 1, time.share("data"), words, hint=hint)


def validates_too_long(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.seconds.get("validation", 0.0) < _LEAST_S:
        return
    training = sum(time.seconds.get(part, 0.0) for part in ("data", "forward", "backward", "optimizer"))
    times = time.seconds["validation"] / training if training else 0.0
    if times > threshold:
        words = f"validation takes {times:.2g} times as long as the training itself"
        yield TrainingSighting(None, 1, times, words)


def first_step_is_most(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    time = _time(case)
    if time is None or time.first < _LEAST_S:
        return
    share = time.first / (time.first + time.total)
    if share > threshold:
        words = f"the first step takes {time.first:.3g} s, {share:.0%} of all steps"
        yield TrainingSighting(None, 0, share, words)


RULES = (
    TrainingRule(
        code="MS771",
        name="waits-for-data",
        severity=WARNING,
        sentence="the model waits for data during much of each step",
        threshold=0.3,
        measure="share of the time of all steps but the first, at least five seconds in all",
        source="measured; PyTorch, performance tuning guide: asynchronous data loading",
        hint="more workers, persistent_workers=True, or samples that are made quicker",
        link=Link.WIRING,
        judge=waits_for_data,
    ),
    TrainingRule(
        code="MS772",
        name="validates-too-long",
        severity=WARNING,
        sentence="validation takes longer than the training itself",
        threshold=1.0,
        measure="time of validation over that of data, forward, backward and optimizer; at least five seconds",
        source="measured; own reasoning",
        hint="validate more rarely, on fewer batches, or in larger ones",
        link=Link.WIRING,
        judge=validates_too_long,
    ),
    TrainingRule(
        code="MS773",
        name="first-step-takes-most",
        severity=WARNING,
        sentence="the first step takes more than half of the time of all steps",
        threshold=0.5,
        measure="share of the time of all steps; at least five seconds",
        source="measured; torch.compile and the start of workers count here",
        hint="for a short run leave out torch.compile; persistent_workers=True keeps workers between epochs",
        link=Link.WIRING,
        judge=first_step_is_most,
    ),
)
