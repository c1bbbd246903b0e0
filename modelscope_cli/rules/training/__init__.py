"""MS7xx: what goes wrong while a model is trained, and why. Standard library only."""

from dataclasses import dataclass

from modelscope_cli.records.check import ERROR
from modelscope_cli.records.naming import counted
from modelscope_cli.records.watch import FAULT, SOUND, UNKNOWN, TrainingFacts, TrainingFinding
from modelscope_cli.rules.training import (
    bookkeeping,
    data,
    layers,
    loss,
    modes,
    recipe,
    time,
    updates,
    wiring,
)
from modelscope_cli.rules.training.case import Case, Course, TrainingRule
from modelscope_cli.rules.training.progress import MIN_STEPS, follow, has_moving_targets
from modelscope_cli.rules.training.story import tell

RULES: tuple[TrainingRule, ...] = tuple(
    sorted(
        (
            *data.RULES,
            *bookkeeping.RULES,
            *modes.RULES,
            *wiring.RULES,
            *layers.RULES,
            *recipe.RULES,
            *updates.RULES,
            *loss.RULES,
            *time.RULES,
        ),
        key=lambda rule: rule.code,
    )
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules make of a training; see `WatchRecord`."""

    findings: tuple[TrainingFinding, ...]
    verdict: str
    reason: str | None


def judge_training(course: Course, facts: TrainingFacts | None = None) -> Judgement:
    """Return what the rules find, each cause followed by what follows from it, and the verdict."""
    facts = facts or TrainingFacts()
    case = Case(course, facts, follow(course.loss, course.lr, facts))
    found = [(rule, seen) for rule in RULES for seen in rule.judge(case, rule.threshold)]
    label = case.naming()
    told = tell(case, found)
    worst = {code for (rule, seen), code in told if (seen.severity or rule.severity) == ERROR}
    findings = tuple(
        TrainingFinding(
            code=rule.code,
            rule=rule.name,
            # A cause is at least as severe as what follows from it.
            severity=ERROR if not follows and rule.code in worst else seen.severity or rule.severity,
            layer=label(seen.row) if seen.row else None,
            since_step=seen.step,
            value=seen.value,
            threshold=rule.threshold,
            message=seen.message,
            hint=seen.hint or rule.hint,
            place=seen.place,
            follows=follows,
        )
        for (rule, seen), follows in told
    )
    if findings:
        return Judgement(findings, FAULT, None)
    reason = _why_unknown(case)
    return Judgement((), UNKNOWN, reason) if reason else Judgement((), SOUND, _what_is_missing(case))


def _what_is_missing(case: Case) -> str | None:
    """Say what the verdict is not about; None where it is about everything."""
    kinds = {event.kind for event in case.course.events}
    if "compiled" in kinds:
        return "the model is compiled: its loss and parameters were judged, but its layers are not visible"
    if "tensors" in kinds and not case.course.layers:
        return "no module runs: the loss and the trained tensors were judged; there are no layers"
    return None


def _why_unknown(case: Case) -> str | None:
    """Say why it cannot be told whether anything is wrong; None where nothing is."""
    steps, main = case.course.steps, case.progress.main
    if not steps:
        n = case.facts.backwards
        if not n and case.facts.time is not None and case.facts.time.passes:
            ran = counted(case.facts.time.passes, "forward")
            return f"no step was seen: {ran} without any training, so only the time was looked at"
        if not n:
            return "no step was seen: no optimizer of torch.optim stepped, and backward() was never called"
        ran = f"{n:,} backward {'pass' if n == 1 else 'passes'} ran"
        return f"no step was seen: {ran}, but no parameter or leaf that they reach changed"
    if steps < MIN_STEPS:
        return f"too short to judge: {counted(steps, 'step')}, at least {MIN_STEPS} are needed"
    if main is None:
        return "no loss was seen, so it is unknown whether the model learns"
    if not case.course.layers and _what_is_missing(case) is None:
        return "no layer could be seen"
    if case.progress.is_adversarial:
        return "each of several optimizers has its own loss, and one may rise as another falls"
    what = f"the mean loss is {main.start:.3g} over the first steps and {main.end:.3g} over the last"
    if case.progress.learns:
        unmeasured = "and there is nothing to compare it with: neither the chance-level loss nor an accuracy"
        return None if case.progress.is_measured else f"{what}, {unmeasured}"
    if has_moving_targets(case.facts) and main.n:
        return (
            f"{what}, and need not fall: the targets seem to come from the model itself, or from a copy of it"
        )
    chance = case.progress.chance
    if chance is not None and main.n:
        what += f"; the chance-level loss is {chance:.3g}"
    return f"{what}, a difference within the noise" if main.n else what
