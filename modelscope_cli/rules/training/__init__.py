"""MS7xx: rules about trainings. Standard library only."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from modelscope_cli.records.findings import ERROR
from modelscope_cli.records.naming import counted
from modelscope_cli.records.trials import GRADIENT, Trials
from modelscope_cli.records.watch import FAULT, LEARNING, SOUND, UNKNOWN, TrainingFacts, TrainingFinding
from modelscope_cli.rules.rule import rules_in
from modelscope_cli.rules.training import bookkeeping, data, layers, loss, recipe, trial, updates, wiring
from modelscope_cli.rules.training.progress import FEW_LABELS, MIN_STEPS, doubt, follow, labels_seen, proof
from modelscope_cli.rules.training.rule_types import Case, Course, Link, TrainingRule, TrainingSighting

Found = tuple[TrainingRule, TrainingSighting]
NOT_FALLEN = "MS735"
RULES = rules_in(TrainingRule, data, bookkeeping, wiring, layers, recipe, updates, loss, trial)
NOT_TRIED = Trials()
# What makes channels die later on: predictions that have nothing to do with the targets, or only one class
_DYING, _NO_DEATH = "MS731", {"MS736", "MS756"}
_IMBALANCED = 0.8  # share of the commonest label, above which accuracy says little
_EVALUATION = "the evaluation (its forward passes were seen, but not its labels)"
_LOOSE = "the evaluation (its forward passes, with {} layers, ran in training mode: call model.eval())"
_MEMORISING = "whether the model memorises (the loss was seen on training data only)"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The findings and the verdict on a training; see `WatchRecord`."""

    findings: tuple[TrainingFinding, ...]
    verdict: str
    reason: str | None


def judge_training(
    course: Course, facts: TrainingFacts | None = None, trials: Trials = NOT_TRIED
) -> Judgement:
    """Return the verdict, and the findings: first a cause that trials proved, each cause before its symptoms."""
    facts = facts or TrainingFacts()
    case = Case(course, facts, follow(course.loss, course.lr, facts, course.events), trials)
    seen_by_rule = [(rule, sighting) for rule in RULES for sighting in rule.judge(case, rule.threshold)]
    # What is the same at several lines, such as two calls of a criterion, is said of the first
    by_words = {(rule.code, one.message, id(one.row)): (rule, one) for rule, one in reversed(seen_by_rule)}
    findings_by_rule = list(by_words.values())[::-1]
    is_apart = any(rule.code in _NO_DEATH for rule, _ in findings_by_rule)
    for at, (rule, seen) in enumerate(findings_by_rule):
        if rule.code == _DYING and seen.step and is_apart:
            findings_by_rule[at] = rule, replace(seen, link=Link.LOSS)
    if _may_have_begun(case) and {(rule.code, one.link) for rule, one in findings_by_rule} == {
        (NOT_FALLEN, None)
    }:
        findings_by_rule = []  # one that learns may be there too after so few labels
    label = case.naming()
    by_rules = [one for one in findings_by_rule if one[0].code not in trial.CODES]
    proofs = [one for one in findings_by_rule if one[0].code in trial.CODES]
    explained = by_trial(trials, proofs[0], tell(case, by_rules)) if proofs else tell(case, by_rules)
    worst = {code for (rule, sighting), code in explained if (sighting.severity or rule.level) == ERROR}
    findings = tuple(
        TrainingFinding(
            code=rule.code,
            rule=rule.name,
            # A cause is at least as severe as its symptoms.
            severity=ERROR if not follows and rule.code in worst else sighting.severity or rule.level,
            layer=label(sighting.row) if sighting.row else None,
            since_step=sighting.step,
            value=sighting.value,
            threshold=rule.threshold,
            message=sighting.message,
            hint=_advice(case, (rule, sighting), follows),
            place=sighting.place,
            follows=follows,
            proved=sighting.proved,
        )
        for (rule, sighting), follows in explained
    )
    if findings:
        return Judgement(findings, FAULT, None)
    if (reason := _why_incomplete(case) or _why_unknown(case)) is not None:
        return Judgement((), UNKNOWN, reason)
    is_evaluated = any(not one.is_training and one.series.step for one in facts.criteria)
    held = {one.model for one in course.parameters if one.optimizer}
    models = [one for one in facts.models if one.model in held and not one.makes_targets]  # not a teacher
    loose = {kind for one in models if one.loose_runs for kind in one.loose_modes}
    unjudged = [_MEMORISING, *[_EVALUATION] * any(one.validated for one in models)]
    unjudged += [_LOOSE.format(" and ".join(sorted(loose)))] if loose else []
    untested = [*_unseen(case), *([] if is_evaluated else unjudged)]
    main, chance = case.progress.main, case.progress.chance
    is_measured = case.progress.is_measured or proof(facts) is not None
    reasons = [] if is_measured else [_how_far(case)]
    if not reasons and main and main.has_fallen:
        is_open = main.is_falling and chance and (case.progress.guessed or 0.0) > _IMBALANCED
        reasons = [f"it learns: {_how_far(case)}{case.progress.right if chance is None else ''}"]
        if is_open:
            reasons[0] += f", and is still falling; chance level is {chance:.3g}"
    reasons += [f"not tested: {'; '.join(untested)}"] if untested else []
    return Judgement((), SOUND if is_measured else LEARNING, "; ".join(reasons) or None)


def _advice(case: Case, found: Found, follows: str | None) -> str:
    """Return what to try: not what trials have changed without effect, unless the script is wrong in any case, and
    not the contrary of what the cause needs."""
    rule, sighting = found
    hint, changes = sighting.hint or rule.hint, case.trials.in_vain.get(rule.code, ())
    if follows is not None:
        return f"correct {follows} first; if this is still found: {hint}"
    if sighting.proved or not changes:
        return hint
    vain = f"{' and '.join(changes)} made it no better"
    if rule.code in trial.REFUTABLE:
        return f"look for another cause: {vain}"
    if _link(found) <= Link.WIRING and not case.fails:
        return hint
    return f"{hint}; this alone may not be enough: {vain}"


def is_certain(code: str) -> bool:
    """Tell whether a rule is about what the script does wrong in any case, whether or not the model learns."""
    unused = "MS716"  # which costs nothing but memory
    return any(rule.code == code != unused and rule.link <= Link.WIRING for rule in RULES)


def _may_have_begun(case: Case) -> bool:
    """Tell whether a training that has learnt nothing has seen few labels, and is none the worse for it."""
    main = case.progress.main
    if not case.fails or main is None or main.has_risen or not main.n:
        return False
    return labels_seen(case.facts, case.course.steps) < FEW_LABELS


def _unseen(case: Case) -> Iterator[str]:
    """Yield what the verdict does not cover, as it could not be seen."""
    kinds = {event.kind for event in case.course.events}
    optimizers = case.facts.optimizers
    if "broken" in kinds:
        yield "what came after the error that stopped the recording"
    if "compiled" in kinds:
        yield "the layers of a compiled model, which are not visible"
    elif "captured" in kinds:
        yield "the steps replayed by a captured CUDA graph, which are not visible"
    elif optimizers and all(one.is_loose for one in optimizers):
        yield "everything but the loss: the optimized tensors belong to no module"
    elif "tensors" in kinds and not case.course.layers:
        yield "the layers (none was seen)"


def _how_far(case: Case) -> str:
    """Return how far the losses fell: `the loss fell from 1.2 to 0.4`, `both losses fell: G 1.3 to 0.9, D ...`."""
    losses = case.progress.losses
    owners = {one.optimizer: one.model for one in case.weights()}
    ends = [f"{owners.get(one.optimizer, one.optimizer)} {one.early:.3g} to {one.end:.3g}" for one in losses]
    falls = {"fell" if one.end < one.early else "rose" for one in losses}
    if len(losses) == 1:
        return f"the loss {falls.pop()} from {losses[0].early:.3g} to {losses[0].end:.3g}"
    how = f"both losses {falls.pop()}" if len(falls) == 1 and len(losses) == 2 else "the losses changed"
    return f"{how}: {', '.join(ends)}"


def _why_incomplete(case: Case) -> str | None:
    """Return that an error stopped the recording before there was enough to judge; None otherwise."""
    is_broken = any(one.kind == "broken" for one in case.course.events)
    if is_broken and (case.course.steps < MIN_STEPS or case.progress.main is None):
        return f"the record is incomplete: an error stopped it after {counted(case.course.steps, 'step')}"
    return None


def _why_unknown(case: Case) -> str | None:
    """Return why the training cannot be judged; None if it can."""
    steps, main = case.course.steps, case.progress.main
    if not steps:
        n = case.facts.backwards
        if not n and case.facts.time is not None and case.facts.time.passes:
            ran = counted(case.facts.time.passes, "forward")
            return f"no step and no backward pass was seen, only {ran}: nothing but the time was judged"
        if not n:
            return "no step of a torch.optim optimizer and no backward pass was seen"
        ran = f"{n:,} backward {'pass' if n == 1 else 'passes'} ran"
        return f"no step was seen: {ran}, but no parameter or leaf in their graphs has changed"
    if steps < MIN_STEPS:
        return f"too short to judge, with {steps:,} of the {MIN_STEPS} steps needed"
    if main is None:
        return "no loss was seen, so it is unknown whether the model learns"
    if not case.course.layers and not any(_unseen(case)):
        return "no layer could be seen"
    if case.progress.is_adversarial:
        return f"{_how_far(case)}; losses of models trained against each other do not tell how good they are"
    reason = f"the mean loss is {main.began()} and {main.end:.3g} over the last"
    if case.progress.learns:
        return doubt(case.facts)
    if (point := case.progress.of_one_point) is not None and main.has_fallen and not case.fails:
        words = f"{reason}, but would be {point:.3g} if all outputs were the same"
        return f"{words}: the fall may be a collapse"
    if case.progress.moves and main.n:
        return f"{reason}, and need not fall: {case.progress.moves}"
    if (far := loss.far_targets(case)) is not None:
        return f"{reason}; {far[0]}: {loss.STANDARDISE}"
    chance, begun = case.progress.chance, _may_have_begun(case)
    reason += "" if main.has_fallen or begun else ", a difference within the noise"
    reason += f"; chance level is {chance:.3g}" if chance is not None else case.progress.right
    if begun:
        labels = labels_seen(case.facts, case.course.steps)
        return f"{reason}; {case.course.steps:,} steps, of at most about {labels:,.0f} labels, are too few to tell"
    return f"{reason}: it is still falling" if main.is_falling else reason


# Faults that explain no other finding; with a link of its own, a sighting explains symptoms without another cause.
_EXPLAINS_NOTHING = {"MS716", "MS718", "MS732", "MS734", "MS743"}
# What predictions show that are pulled to the mean of all targets, as broadcasting does; not, say, a dead ReLU.
_BROADCAST, _AT_THE_MEAN = "MS724", {"MS735", "MS736", "MS742", "MS755", "MS756", "MS757"}
_NOT_FINITE = {"MS701", "MS702", "MS703"}
_FIRST_SEEN = 1  # the first step at which a change between two steps can be seen


def tell(case: Case, found: Sequence[Found]) -> list[tuple[Found, str | None]]:
    """Return each finding and the code of the one that explains it, with each cause before its symptoms.

    Findings explain those later in the chain; with the same link, the first one does. Certain faults in the data or
    the script are always causes. Findings that begin after the first non-finite value follow from that.
    """
    places = {id(row): at for at, row in enumerate((*case.course.layers, *case.course.parameters))}
    ordered = sorted(found, key=lambda one: _key(one, places))
    broken = min((sighting.step or 0 for rule, sighting in ordered if rule.code in _NOT_FINITE), default=None)
    causes: list[Found] = []
    follows: list[tuple[Found, str]] = []

    def is_spoilt(one: Found) -> bool:
        is_later = broken is not None and (one[1].step or 0) >= broken
        return is_later and _link(one) >= Link.STEP_SIZE and one[0].code not in _NOT_FINITE

    for one in sorted(ordered, key=is_spoilt):  # stable: they come behind the first non-finite value
        first = sorted(causes, key=lambda other: other[0].code in _EXPLAINS_NOTHING)
        cause = next((other for other in first if _explains(other, one)), None)
        if cause is None:
            causes.append(one)
        else:
            follows.append((one, cause[0].code))
    explained: list[tuple[Found, str | None]] = []
    for cause in causes:
        explained.append((cause, None))
        explained += [(one, code) for one, code in follows if code == cause[0].code]
    return explained


def by_trial(
    trials: Trials, proof: Found, explained: Sequence[tuple[Found, str | None]]
) -> list[tuple[Found, str | None]]:
    """Put the cause that trials proved first, under the code of the rule that named it, and refuted ones below it.

    What a loop does wrong in any case, such as a parameter that no optimizer holds, stays a cause of its own. A
    change that makes many trainings better comes after every cause that a rule found and no trial has excluded.
    """
    (rule, sighting), fix, rest = proof, trials.fix, list(explained)
    # These tell less than a rule whose cause no trial has excluded
    if fix is None and trials.examined != GRADIENT:
        causes = [found for found, follows in rest if follows is None]
        if any(_link(one) < Link.STANDSTILL and one[0].code not in trials.refuted for one in causes):
            return sorted(rest, key=lambda one: one[1] in trials.refuted or one[0][0].code in trials.refuted)
    named = next((one for one in rest if fix and one[1] is None and one[0][0].code in fix.codes), None)
    if named is not None and fix is not None:
        (rule, seen), _ = named
        place, words = fix.source or seen.place, f"{fix.sentence}; {seen.message}"
        sighting = replace(seen, place=place, message=words, hint=fix.write, proved=fix)
        rest.remove(named)
    first = rule, sighting
    is_general = fix is not None and fix.is_general
    last = Link.STEP_SIZE if is_general else Link.WIRING

    def is_apart(found: Found) -> bool:
        is_excluded = found[0].code in (*trials.refuted, *(fix.codes if fix else ()))
        return _link(found) is Link.SPEED or (_link(found) <= last and (is_general or not is_excluded))

    own = {found[0].code: _link(found) for found, follows in rest if follows is None and is_apart(found)}
    own = {code: link for code, link in own.items() if code not in trials.refuted}
    placed = [
        (found, follows if follows in own or (follows is None and is_apart(found)) else rule.code)
        for found, follows in rest
    ]
    behind = {*_EXPLAINS_NOTHING, *(fix.codes if fix else ())}
    ahead = {code for code in own.keys() - behind if is_general and own[code] <= last}
    head = [one for one in placed if one[0][0].code in ahead or one[1] in ahead]
    tail = [one for one in placed if one not in head]
    return [*head, (first, None), *sorted(tail, key=lambda one: one[1] != rule.code)]


def _key(one: Found, places: dict[int, int]) -> tuple[int, bool, int, int]:
    rule, sighting = one
    link, severity = _link(one), sighting.severity or rule.level
    # Certain findings are sorted by severity, symptoms by their first step, and outputs after layers.
    is_last = link >= Link.LAYERS and rule.code not in _NOT_FINITE
    place = places.get(id(sighting.row), len(places) if is_last else -1)
    return link, link <= Link.WIRING and severity != ERROR, sighting.step or 0, place


def _explains(cause: Found, one: Found) -> bool:
    (rule, sighting), (other, after) = cause, one
    if _link(one) is Link.SPEED:
        return False
    is_weak = rule.code in _EXPLAINS_NOTHING and not (sighting.link and _link(one) >= Link.LAYERS)
    is_weak |= rule.code == _BROADCAST and other.code not in _AT_THE_MEAN
    if is_weak or max(other.link, _link(one)) <= Link.WIRING:
        return False  # two faults in a script are independent
    if rule.code in _NOT_FINITE:
        return (after.step or 0) >= (sighting.step or 0) or other.code in _NOT_FINITE
    if after.step is not None and after.step < (sighting.step or 0) > _FIRST_SEEN:
        return False  # it began earlier
    return _link(cause) < _link(one) or _link(cause) == _link(one) >= Link.STEP_SIZE


def _link(one: Found) -> Link:
    rule, sighting = one
    return sighting.link or rule.link
