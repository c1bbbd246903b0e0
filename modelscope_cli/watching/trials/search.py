"""Which trials are run, in which order, and what follows from them."""

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from modelscope_cli.records import trials as results
from modelscope_cli.records.naming import percent, some
from modelscope_cli.records.trials import Fix, TrialRow, Trials
from modelscope_cli.records.watch import FAULT, WatchRecord
from modelscope_cli.rules.training import is_certain
from modelscope_cli.rules.training.progress import follow
from modelscope_cli.rules.training.trial import REFUTABLE
from modelscope_cli.watching.trials import catalogue
from modelscope_cli.watching.trials.catalogue import BY_NAME, TRIALS, Trial
from modelscope_cli.watching.trials.examine import Slopes
from modelscope_cli.watching.trials.judge import COST, FALL, LOSS, RIGHT, Scale
from modelscope_cli.watching.trials.trial import Clues, Measured

FEWEST_STEPS = 12  # that can be compared
_SHORTEST, _LONGEST = 120, 600  # steps of a trial
_SHARE = 0.34  # of the steps of the run
_AFTER = 40  # steps after the first finding
_OTHER_SEED = 1000
_STIR, _MORE_RIGHT = 0.02, 0.05  # share of the loss at first; accuracy
_AT_LEAST = 0.5  # of the fall with AdamW
_NEAR = 0.1  # share of a fall, by which two changes restore equally
_CHECKED = 3  # steps, of which the second is examined
_DIFFERENCES = "the gradient of each module compared with finite differences"
# Of samples learnt by heart: share of the loss at first that is left, or accuracy
_LEARNT, _RIGHT = 0.3, 0.99

_TOO_HIGH = "MS704 MS709"  # rules about a learning rate that is too high
# Causes of small steps, which a higher rate makes up for but does not take away; and the trials that do
_SLOWED, _UNSLOWED = "MS719 MS741 MS758", ("no clipping", "constant rate")
_IMBALANCED = 0.8  # share of the commonest label

Run = Callable[[Sequence[tuple[str, int]], int], list[Measured]]
"""Runs trials: the name of each and what is added to the seeds; steps."""


class NoMoreTrialsError(Exception):
    """No time is left for another trial, or it was interrupted; the message says so."""


@dataclass(slots=True)
class Search:
    """The search for the change that makes one script learn; `run`, a `Run`, may raise `NoMoreTrialsError`."""

    record: WatchRecord
    run: Run
    rows: list[TrialRow] = field(default_factory=list)
    _tried: dict[str, Measured] = field(default_factory=dict)
    _same: Measured | None = None  # unchanged, with another seed
    _steps: int = 0

    def search(self) -> Trials:
        """Run trials until a cause is proved or nothing is left to try."""
        self._steps = steps_of(self.record)
        try:
            found = self._searched()
        except NoMoreTrialsError as error:
            found = Trials(outcome=str(error))
        refuted = tuple(dict.fromkeys(self._refuted(() if found.fix is None else found.fix.codes)))
        is_sure = found.fix is not None or found.examined is not None
        refuted = refuted if is_sure else ()
        return replace(found, rows=tuple(self.rows), refuted=refuted, in_vain=self._in_vain())

    def _searched(self) -> Trials:
        (base,) = self.run([("", 0)], self._steps)
        if base.n < FEWEST_STEPS or base.survey is None or not base.has_ended:
            return Trials(outcome=f"not tried: {_why_not(base)}")
        clues = Clues(self.record, base.survey, base)
        scale = _scale(clues)
        self._add("rerun", "unchanged", base, scale, None)
        return self._find(clues, scale)

    def _find(self, clues: Clues, scale: Scale) -> Trials:
        suspected, present = catalogue.ordered(clues)
        is_failing = scale.can_restore(clues.base, is_general=False)
        if not is_failing:
            suspected = [one for one in suspected if clues.has_found(one.codes)]
        found = self._fix_among(self._specific(suspected, clues, scale), clues, scale)
        if found is None and scale.can_restore(clues.base, is_general=True):
            found = self._fix_among(self._recipes(clues, scale), clues, scale)
        elif found is None and clues.has_found(_TOO_HIGH):
            found = self._fix_among([[BY_NAME["rate / 10"], BY_NAME["rate / 100"]]], clues, scale)
        if found is not None:
            return found
        if scale.has_learnt(clues.base):
            found = self._fix_among([present], clues, scale) if is_failing else None
            return found or Trials(outcome=self._best_so_far(clues, scale))
        if (found := self._unconfirmed(clues, scale) or self._wrong_gradient(clues, scale)) is not None:
            return found
        return self._fix_among([present], clues, scale) or self._by_heart(clues, scale)

    def _unconfirmed(self, clues: Clues, scale: Scale) -> Trials | None:
        """Return the best change that makes it learn with the seed of the script; None if none does."""
        learnt = [row for row in self.rows if row.helps == results.ONCE]
        if not learnt or self._same is None:
            return None
        best = min(learnt, key=lambda row: row.loss_last or 0.0)
        what = f"the {best.measure} falls to {best.loss_last:.3g}"
        what += f" ({clues.base.last(scale.what):.3g} without it)"
        again = "the unchanged script learns too" if scale.has_learnt(self._same) else "it does not"
        return Trials(outcome=f"with {best.changed}, {what}; not proved: with another seed {again}")

    def _fix_among(self, stages: Iterable[Sequence[Trial]], clues: Clues, scale: Scale) -> Trials | None:
        """Return the best of some trials that is confirmed; None if none is."""
        restoring: list[Trial] = []
        for stage in stages:
            self._try(stage, clues, scale)
            restoring += [one for one in stage if self._restores(one, clues, scale)]
        for trial in _best(restoring, self._tried, scale):
            if (fix := self._confirm(trial, clues, scale)) is not None:
                return Trials(fix=fix, outcome=fix.sentence)
        return None

    def _specific(self, suspected: Sequence[Trial], clues: Clues, scale: Scale) -> Iterator[Sequence[Trial]]:
        """Yield what is suspected, and inputs that standardising did not help alone with a lower rate as well."""
        yield suspected
        is_left = any(row.name == "standardised inputs" and row.helps == results.NO for row in self.rows)
        if is_left and scale.can_restore(clues.base, is_general=True):
            yield BY_NAME["rate / 10"], BY_NAME[catalogue.BOTH]

    def _recipes(self, clues: Clues, scale: Scale) -> Iterator[Sequence[Trial]]:
        """Yield changes of the whole recipe, a strong optimizer first, which tells whether any can help."""
        in_vain = any(row.name in _UNSLOWED and row.helps == results.NO for row in self.rows)
        if not clues.survey.settings or (clues.has_found(_SLOWED) and not in_vain):
            return
        highest = max(clues.base.values(scale.what), default=0.0)
        is_diverging = scale.fall(clues.base) < -FALL * abs(scale.start) or highest > 2 * abs(scale.start)
        is_diverging |= clues.has_found(_TOO_HIGH)
        first, *rates = [
            BY_NAME[f"rate {'/' if is_diverging else 'x'} {factor}"] for factor in (10, 100, 1000, 10_000)
        ]
        strong = BY_NAME[catalogue.STRONG]
        yield strong, first
        if not any(scale.is_better(self._tried[one.name], clues.base) for one in (strong, first)):
            return
        enough = _AT_LEAST * scale.fall(self._tried[strong.name])
        for before, rate in pairwise([first, *rates]):
            if self._restores(before, clues, scale) and scale.fall(self._tried[before.name]) >= enough:
                return
            yield (rate,)

    def _restores(self, trial: Trial, clues: Clues, scale: Scale) -> bool:
        one = self._tried[trial.name]
        return one.has_acted and _restores(trial, one, clues.base, scale)

    def _try(self, trials: Sequence[Trial], clues: Clues, scale: Scale) -> None:
        """Run trials with the seeds of the script."""
        trials = [one for one in trials if one.name not in self._tried]
        found = self.run([(one.name, 0) for one in trials], self._steps) if trials else []
        for trial, one in zip(trials, found, strict=True):
            self._tried[trial.name] = one
            scale_of = _scale_of(trial, scale, clues.base)
            helps = results.BROKE if not one.has_acted else scale_of.helps(one, clues.base)
            if self._restores(trial, clues, scale):
                helps = results.ONCE
            self._add(trial.name, trial.changed(clues), one, scale_of, helps)

    def _confirm(self, trial: Trial, clues: Clues, scale: Scale) -> Fix | None:
        """Run the training without a change and with it, both with another seed."""
        wanted = [] if self._same is not None else [("", _OTHER_SEED)]
        *same, one = self.run([*wanted, (trial.name, _OTHER_SEED)], self._steps)
        for self._same in same:
            self._add("rerun", "another seed", self._same, scale, None, seed=_OTHER_SEED)
        base = self._same
        assert base is not None
        scale_of = _scale_of(trial, scale, clues.base)
        is_proved = one.has_acted and _restores(trial, one, base, scale)
        helps = results.PROVED if is_proved else scale_of.helps(one, base)
        self._add(
            trial.name, f"{trial.changed(clues)}, and another seed", one, scale_of, helps, seed=_OTHER_SEED
        )
        if not is_proved:
            return None
        place = next(i for i, row in enumerate(self.rows) if row.name == trial.name and not row.seed)
        self.rows[place] = replace(self.rows[place], helps=results.PROVED)
        return _fix(trial, self._tried[trial.name], clues, scale_of)

    def _wrong_gradient(self, clues: Clues, scale: Scale) -> Trials | None:
        """Look at the gradients of the layers."""
        (checked,) = self.run([(catalogue.DIFFERENCES, 0)], _CHECKED)
        slopes = [Slopes(**one) for one in checked.found if "layer" in one]
        told = [*(one.words for one in slopes), *(one["words"] for one in checked.found if "words" in one)]
        if told:
            self._add(catalogue.DIFFERENCES, _DIFFERENCES, checked, scale, None, reason="; ".join(told))
        wrong = next((one for one in slopes if one.is_wrong), None)
        if wrong is None:
            return None
        return Trials(outcome=wrong.words, examined=results.GRADIENT, place=clues.survey.model)

    def _by_heart(self, clues: Clues, scale: Scale) -> Trials:
        """Let the model learn eight samples by heart, which tells where to look."""
        own = "" if clues.survey.settings else " (the optimizer is not from torch.optim and was kept)"
        what = f"no single change that was tried made the model learn{own}"
        certain = [one.code for one in self.record.findings if one.follows is None and is_certain(one.code)]
        if certain:
            untried = [code for code in certain if code not in self._failed()]
            return Trials(outcome=f"{what}; correct {some(untried)} first" if untried else what)
        (heart,) = self.run([(catalogue.HEART, 0)], self._steps)
        if not heart.has_acted:
            return Trials(outcome=f"{what}; whether it can memorise eight samples could not be tested")
        self._add(catalogue.HEART, "eight samples in every step, and AdamW", heart, scale, None)
        is_right = (_known(heart.last(RIGHT)) or 0) > _RIGHT  # a loss of squashed logits hardly falls
        if not scale.has_learnt(heart) and not is_right:
            words = "and not even eight samples can be memorised: look at the model and its loss"
            return Trials(outcome=f"{what}, {words}", examined=results.MODEL, place=clues.survey.model)
        if not (heart.last(scale.what) < _LEARNT * scale.start or is_right):
            return Trials(outcome=f"{what}, and eight samples are memorised slowly: train for longer")
        words = f"{what}, but it can memorise eight samples"
        _, share = clues.labels_alike
        if share > _IMBALANCED and scale.what == COST:
            advice = "weight the classes, or sample them evenly"
            return Trials(outcome=f"{words}: {percent(share)} of the labels are of the same class, {advice}")
        if self._stirs(clues.base, scale):
            return Trials(outcome=f"{words}: more steps may be needed")
        words += ": look at the data and the labels"
        return Trials(outcome=words, examined=results.DATA, place=clues.survey.criterion)

    def _stirs(self, base: Measured, scale: Scale) -> bool:
        """Tell whether a strong optimizer makes a training a little better, so that its recipe may be the cause."""
        strong = self._tried.get(catalogue.STRONG)
        if strong is None or not strong.has_acted:
            return True
        gain = (_known(strong.last(RIGHT)) or 0) - (_known(base.last(RIGHT)) or 0)
        return scale.fall(strong) > _STIR * abs(scale.start) or gain > _MORE_RIGHT

    def _best_so_far(self, clues: Clues, scale: Scale) -> str:
        """Return how a training that learns by itself went, and what made it a little better."""
        base = clues.base
        fall = f"falls from {scale.start:.3g} to {base.last(scale.what):.3g}"
        words = f"the {scale.measure} of the unchanged script {fall}"
        refuted = {row.name for row in self.rows if row.seed and row.helps in (results.NO, results.BROKE)}
        tried = {name: one for name, one in self._tried.items() if name not in refuted}
        better = {name: scale.fall(one) for name, one in tried.items() if scale.is_better(one, base)}
        if not better:
            return f"{words}, and none of the changes tried clearly improves it"
        best = max(better, key=lambda name: better[name])
        return f"{words}, and with {BY_NAME[best].changed(clues)} to {self._tried[best].last(scale.what):.3g}"

    def _refuted(self, proved: Sequence[str]) -> Iterator[str]:
        """Yield codes of the rules whose cause was taken away, and no change that does so alone helped."""
        good = results.A_LITTLE, results.ONCE, results.PROVED
        helped = {row.name for row in self.rows if row.helps in good}
        specific = [one.codes.split() for one in TRIALS if one.name in helped and not one.is_general]
        spared = {*proved, *(code for codes in specific for code in codes)}
        yield from (code for code in self._failed() if code in REFUTABLE and code not in spared)

    def _in_vain(self) -> dict[str, list[str]]:
        """Return what was changed for each rule, in words, where none of it helped."""
        tried: dict[str, list[TrialRow]] = {}
        for row in self.rows:
            for code in BY_NAME[row.name].codes.split() if row.helps not in (None, results.BROKE) else ():
                tried.setdefault(code, []).append(row)
        return {
            code: [row.changed for row in rows]
            for code, rows in tried.items()
            if all(row.helps == results.NO for row in rows)
        }

    def _failed(self) -> list[str]:
        """Return the codes of the rules of which a trial did not help."""
        names = [row.name for row in self.rows if row.helps == results.NO]
        return [code for one in TRIALS if one.name in names for code in one.codes.split()]

    def _add(
        self,
        name: str,
        changed: str,
        one: Measured,
        scale: Scale,
        helps: str | None,
        *,
        seed: int = 0,
        reason: str | None = None,
    ) -> None:
        if helps == results.BROKE:
            reason = one.error or ("nothing to change" if one.has_ended else "took too long")
        losses = _known(one.first(scale.what)), _known(one.last(scale.what))
        right, measure = _known(one.last(RIGHT)), scale.measure
        self.rows.append(TrialRow(name, changed, one.n, *losses, right, helps, seed, reason, measure))


def steps_of(record: WatchRecord) -> int:
    """Return how many steps a trial takes: enough to see a training learn, and beyond the first finding."""
    steps = max(record.steps, record.facts.backwards)
    since = [one.since_step for one in record.findings if one.since_step is not None]
    since += [birth.step for birth in record.births]
    needed = max(_SHORTEST, math.ceil(_SHARE * steps), *(one + _AFTER for one in since), 0)
    return max(min(steps, needed, max(_LONGEST, *(one + _AFTER for one in since), 0)), 1)


def _why_not(base: Measured) -> str:
    if base.error is not None:
        refused = re.search(r"Permission denied: '(.+)/[^/]*'", base.error)
        hint = f"; --fix-writes {shlex.quote(refused[1])} lets trials write there" if refused else ""
        return f"the script cannot be repeated: {base.error}{hint}"
    if not base.has_ended:
        return "the script takes much longer when run again, or longer than trials may take"
    if base.n:
        return f"only {base.n} steps could be compared, and {FEWEST_STEPS} are needed"
    return "no step was seen when the script was run again"


def _scale(clues: Clues) -> Scale:
    record, base = clues.record, clues.base
    n_costs = sum(one is not None for one in base.cost)
    criteria = [one for one in record.facts.criteria if one.is_training]
    is_by_cost = n_costs >= 0.9 * base.n and len(criteria) == 1 and criteria[0].classes is not None
    progress = follow(record.loss, record.lr, record.facts, record.events)
    chance = criteria[0].label_entropy if is_by_cost and criteria[0].label_entropy else progress.chance
    return Scale.of(base, chance, record.verdict == FAULT, is_by_cost=is_by_cost)


def _scale_of(trial: Trial, scale: Scale, base: Measured) -> Scale:
    """Return the scale for a trial; one that changes that of the loss is judged by the predictions."""
    has_costs = sum(one is not None for one in base.cost) >= 0.9 * base.n
    if not trial.rescales or scale.what == COST or not has_costs:
        return scale
    return replace(scale, what=COST, start=base.first(COST), measure=results.CROSS_ENTROPY)


def _restores(trial: Trial, one: Measured, base: Measured, scale: Scale) -> bool:
    if trial.rescales and scale.what == LOSS and any(value is None for value in one.cost):
        return False
    scale_of = _scale_of(trial, scale, base)
    is_right = trial.rescales and scale_of.predicts(one, base)
    return is_right or scale_of.restores(one, base, is_general=trial.is_general)


def _best(trials: Sequence[Trial], tried: dict[str, Measured], scale: Scale) -> list[Trial]:
    """Return changes that restore, the mildest first of those that come equally near.
    AdamW is two changes, optimizer and rate: it comes after a single one with at least half of its fall."""
    falls = {one.name: scale.fall(tried[one.name]) for one in trials}
    single = max((fall for name, fall in falls.items() if name != catalogue.STRONG), default=0.0)
    most = single if falls.get(catalogue.STRONG, 0.0) <= single / _AT_LEAST else falls[catalogue.STRONG]
    near = [one for one in trials if falls[one.name] >= (1 - _NEAR) * most]
    near.sort(key=TRIALS.index)
    return [*near, *sorted((one for one in trials if one not in near), key=lambda one: -falls[one.name])]


def _fix(trial: Trial, one: Measured, clues: Clues, scale: Scale) -> Fix:
    base = clues.base
    last, before = one.last(scale.what), _known(base.last(scale.what))
    metric, metric_before = _known(one.last(RIGHT)), _known(base.last(RIGHT))
    without = "not finite" if before is None else f"{before:.3g}"
    sentence = f"{trial.cause(clues)}with {trial.changed(clues)}, the {scale.measure} falls to {last:.3g}"
    sentence += f" in {one.n} steps ({without} without it)"
    if metric is not None and metric_before is not None:
        sentence += f", and the accuracy rises to {metric:.2f} ({metric_before:.2f} without it)"
    return Fix(
        trial=trial.name,
        sentence=f"proved: {sentence}",
        write=trial.write(clues),
        source=trial.place(clues),
        codes=tuple(trial.codes.split()),
        steps=one.n,
        loss_last=last,
        loss_without=before,
        metric=metric,
        metric_without=metric_before,
        is_general=trial.is_general,
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
