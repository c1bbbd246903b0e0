"""The table of `watch`: the first and last values of each layer, and the verdict below."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modelscope_cli.interrupts import INTERRUPTED
from modelscope_cli.paths import in_repository
from modelscope_cli.records import watch
from modelscope_cli.records.findings import RuleText
from modelscope_cli.records.naming import counted, duration, some
from modelscope_cli.records.training_facts import RankFacts, TimeFacts
from modelscope_cli.records.watch import (
    TrainingFinding,
    WatchedCriterion,
    WatchedInput,
    WatchedLayer,
    WatchRecord,
)
from modelscope_cli.report.ci import Problem, Review
from modelscope_cli.report.numbers import loss, number, percent, shape
from modelscope_cli.report.sheet import Column, Sheet, counter, figure, percentage
from modelscope_cli.report.training_facts import story, training_answer
from modelscope_cli.report.training_panels import by_layer, extent, first_of, last_of
from modelscope_cli.report.watch.trials import trial_facts
from modelscope_cli.rules.training.guessing import cost_of_guessing
from modelscope_cli.rules.training.progress import accuracy_of, course_of, late_loss

_HUGE = 3.0  # times the cost of guessing, of the first loss: usual initial weights give at most twice


def watch_sheet(record: WatchRecord) -> Sheet:
    """Return the layers of a record, with the verdict in the facts."""
    findings = by_layer(record.findings)
    label = watch.labelling(record.layers, record.parameters)
    # An Identity repeats the row before, but shows the input where it is the first
    rows = tuple(
        row for row in record.layers if row.type != "Identity" or not row.order or findings.get(label(row))
    )
    n_left = len(record.layers) - len(rows)
    left_out = [("left out", f"{counted(n_left, 'Identity layer')} (--json has all)")] if n_left else []
    title = f"{record.run.model.class_name}, {counted(record.steps, 'step')}, {record.run.device}"
    verdict = verdict_facts(record)
    return Sheet(
        title=f"{record.run.model.name} ({title})" if record.layers else record.run.model.name,
        columns=_columns(label, findings, record.layers),
        rows=rows,
        facts=(*left_out, *run_facts(record), *verdict),
        answer=tuple(label for label, _ in verdict),
        is_bad=lambda row: bool(findings.get(label(row))),
        is_by_layer=True,
        alike=lambda row: (
            row.series.non_finite_since if _is_lost(row) and not findings.get(label(row)) else None
        ),
    )


def answer(record: WatchRecord) -> str:
    """Return the verdict: the first cause, or how the loss went."""
    course = f"loss {_means(record, record.loss[0])}" if record.loss else ""
    so_far = f"Step {record.steps:,} of a run in progress: " if record.is_running else ""
    return so_far + training_answer(record.findings, record.verdict, record.reason, course)


def every_column() -> tuple[Column, ...]:
    return _columns(lambda row: row.name, {}, ())


def _columns(
    label: Callable[[WatchedLayer], str],
    findings: dict[str, list[TrainingFinding]],
    layers: Sequence[WatchedLayer],
) -> tuple[Column, ...]:
    is_partial = any(any(row.series.nan_count + row.series.inf_count) and not _is_lost(row) for row in layers)

    def codes(row: WatchedLayer) -> str:
        return " ".join(f"{f.code}@{f.since_step}" for f in findings.get(label(row), ()))

    def value(make: Any, key: str, title: str, field: str, pick: Any, rank: int = 1) -> Column:
        """Return a column of one value of a series; fractions of 1 are marked.

        The last value is NaN where nothing in the last record was finite, not the last that was.
        """

        def read(row: WatchedLayer) -> float | None:
            values = getattr(row.series, field) or ()
            chosen: float | None = pick(values)
            has_any = chosen is not None or (values and field != "grad_norm")
            return math.nan if pick is last_of and has_any and _is_lost(row) else chosen

        is_rare = field in ("dead_fraction", "saturated_fraction")  # and hidden where it is 0 everywhere
        shown = any(value and math.isfinite(value) for value in map(read, layers))
        traits: dict[str, Any] = {"is_shown": shown} if is_rare else {}
        if make is percentage and not is_rare:
            traits["is_bad"] = lambda row: read(row) == 1
        column: Column = make(key, title, read, rank=rank, **traits)
        return column

    return (
        Column("name", "layer", label, is_number=False, rank=0),
        Column("type", "type", lambda row: row.type, is_number=False, rank=0),
        value(figure, "mean_first", "mean first", "mean", first_of, rank=5),
        value(figure, "mean_last", "mean last", "mean", last_of, rank=4),
        value(figure, "std_first", "std first", "std", first_of, rank=2),
        value(figure, "std_last", "std last", "std", last_of, rank=1),
        value(percentage, "zero_first", "zero first", "zero_fraction", first_of, rank=3),
        value(percentage, "zero_last", "zero last", "zero_fraction", last_of, rank=0),
        value(percentage, "near_zero_last", "near zero last", "near_zero_fraction", last_of, rank=6),
        value(percentage, "dead_last", "dead last", "dead_fraction", last_of),
        value(percentage, "saturated_last", "saturated last", "saturated_fraction", last_of),
        value(figure, "grad_norm_last", "|g| last", "grad_norm", last_of, rank=2),
        counter("nan", "NaN", lambda row: max(row.series.nan_count, default=0), is_shown=is_partial),
        counter("inf", "inf", lambda row: max(row.series.inf_count, default=0), is_shown=is_partial),
        Column(
            "non_finite_since",
            "non-finite since",
            lambda row: row.series.non_finite_since,
            lambda row: f"since step {since}" if (since := row.series.non_finite_since) is not None else "",
            is_number=False,
            rank=0,
            is_bad=lambda row: row.series.non_finite_since is not None,
            is_shown=any(row.series.non_finite_since is not None for row in layers),
        ),
        Column("findings", "findings", codes, is_number=False, rank=0, is_bad=lambda row: bool(codes(row))),
    )


def _is_lost(row: WatchedLayer) -> bool:
    """Tell whether no value of the last record is finite."""
    return row.series.non_finite_since is not None and row.series.mean[-1] is None


def review(record: WatchRecord, rules: Sequence[RuleText], script: str | None) -> Review:
    """Return the findings for a CI host, causes first, each at the line of the script it is about.

    Args:
        rules: those of a training.
        script: its path; None for a module. A line of another file is only named.
    """

    def problem(row: TrainingFinding) -> Problem:
        name, _, line = (row.place or "").rpartition(":")
        is_here = script is not None and name in ("", Path(script).name)
        file = in_repository(script) if is_here and script is not None else None
        is_told = row.since_step is None or re.search(rf"since step {row.since_step}\b", row.message)
        since = "" if is_told else f", since step {row.since_step}"
        cause = f"; follows from {row.follows}" if row.follows else ""
        message = f"{row.message}{since}{cause}" + (f" ({row.place})" if row.place and not is_here else "")
        line_of_file = int(line) if file and line.isdecimal() else 1
        return Problem(row.code, row.rule, row.severity, row.layer, message, row.hint, file, line_of_file)

    is_told = record.verdict == watch.CRASHED  # by the reason
    outcome = "; ".join(filter(None, [record.verdict * (not is_told), record.reason]))
    n = len(record.findings)
    reason = record.reason or ""
    untested = reason if record.verdict == watch.UNKNOWN else reason.partition("not tested: ")[2]
    return Review(
        command="watch",
        subject=record.run.model.name,
        rules=tuple(rules),
        problems=tuple(map(problem, record.findings)),
        outcome=f"{outcome} ({counted(n, 'finding')})" if n else outcome,
        not_judged=(untested,) if untested else (),
        warnings=record.run.warnings,
    )


def run_facts(record: WatchRecord) -> list[tuple[str, str]]:
    """Return the inputs, losses and learning rates, and how long the run was."""
    facts = [_entering(one, record) for one in record.facts.inputs if not one.type]
    for series in record.loss:
        models = dict.fromkeys(one.model for one in record.parameters if one.optimizer == series.optimizer)
        who = series.optimizer + f" of {', '.join(models)}" * bool(models)
        facts.append(("loss" if len(record.loss) == 1 else f"loss ({who})", _course(record, series)))
    for one in record.facts.criteria:
        if one.is_training and one.absent:
            which = "class" if len(one.absent) == 1 else "classes"
            never = f"{which} {some(list(map(str, one.absent)))} of {one.classes} did not occur"
            facts.append(("labels", f"{never} in the {sum(one.series.rows):,} labels that were looked at"))
    facts += [_evaluation(one) for one in record.facts.criteria if not one.is_training and one.series.step]
    optimizers = dict.fromkeys(series.optimizer for series in record.lr)
    for optimizer in optimizers:
        first, *others = dict.fromkeys(_rates(one) for one in record.lr if one.optimizer == optimizer)
        name = "learning rate" if len(optimizers) == 1 else f"learning rate ({optimizer})"
        facts.append((name, first + f" (other groups: {some(others, 2)})" * bool(others)))
    if record.ranks > 1:
        facts.append(("ranks", f"{record.ranks}, merged{_agreement(record.facts.ranks)}"))
    if record.steps:
        is_sparse = any(event.kind == watch.SPARSE for event in record.events)
        few = ", to keep the overhead small (--every 1 records all)" * is_sparse
        n = "all" if record.recorded == record.steps else record.recorded
        total = max((one.ended + 1 for one in record.facts.optimizers), default=0)
        more = f"; {total} with those of the other optimizers" * (total > record.steps)
        more += ", then interrupted" * (bool(record.findings) and record.exit_code == INTERRUPTED)
        facts.append(("steps", f"{record.steps}, layers recorded in {n} of them{few}{more}"))
    if record.facts.time is not None and record.facts.time.total:
        facts.append(("time", _time_words(record.facts.time)))
    return facts


def verdict_facts(record: WatchRecord) -> tuple[tuple[str, str], ...]:
    """Return the verdict, causes and consequences, and what trials showed."""
    return (*story(record.findings, record.verdict, record.reason), *trial_facts(record))


_PARTS = {
    "data": "waiting for data",
    "device": "waiting for the device",
    "watching": "recording",
    "rest": "other",
}


def _time_words(time: TimeFacts) -> str:
    """Return the shares of the time: `61 % waiting for data, 20 % forward; 38 ms a step`."""
    parts = sorted((part for part in time.seconds if time.share(part) >= 0.005), key=time.share, reverse=True)
    shares = ", ".join(f"{100 * time.share(part):.0f} % {_PARTS.get(part, part)}" for part in parts)
    if not time.steps:
        return f"{shares}; {duration(time.total)} in {counted(time.passes, 'forward')}"
    return f"{shares}; {duration(time.total / time.steps)} a step"


def _agreement(ranks: RankFacts | None) -> str:
    """Return whether the ranks hold the same weights, and what was not compared."""
    if ranks is None:
        return ""
    if ranks.is_averaged_rarely:
        when = "" if ranks.averaged_at is None else f", such as before step {ranks.averaged_at}"
        return f"; their weights differ between steps and are averaged periodically{when}"
    words = []
    if ranks.compared and ranks.disagreement is None:
        same = "are bit-identical" if ranks.differs_by is None else "are equal up to rounding"
        words.append(f"{ranks.compared} parameters {same}")
    if ranks.sharded:
        words.append(f"{ranks.sharded} not compared: each rank holds a part")
    if ranks.apart:
        words.append(f"{ranks.apart} not compared: they may differ on purpose")
    return "; ".join(["", *words])


def _entering(one: WatchedInput, record: WatchRecord) -> tuple[str, str]:
    models = {other.model for other in record.facts.inputs}
    series = one.series
    words = [f"{shape(one.shape)} {one.dtype}", f"mean {number(first_of(series.mean))}"]
    words += [f"std {number(first_of(series.std))}", *extent(series)]
    if any(series.non_finite):
        words.append(f"{sum(series.non_finite):,} non-finite values")
    return one.name if len(models) == 1 else f"{one.name} of {one.model}", ", ".join(words)


def _evaluation(one: WatchedCriterion) -> tuple[str, str]:
    """Return how a criterion without a backward pass changed over the steps."""
    values = [value for value in one.series.value if value is not None]
    rates = [value for value in one.series.accuracy if value is not None]
    label = f"{one.name} ({one.place})" if one.place else one.name
    cost, (accuracy, *_) = late_loss(one), accuracy_of(one)
    if not values or cost is None:
        return "evaluation", label
    ends = (
        f"{number(values[0])} at first, {number(cost)} at the end" if values[1:] else f"{number(cost)}, once"
    )
    words = [f"{label} {ends}"]
    if accuracy is not None:
        first = f"{percent(rates[0])} at first, " if values[1:] else ""
        words.append(f"accuracy {first}{percent(accuracy)}" + (" at the end" if first else ""))
    return "evaluation", "; ".join(words)


def _rates(series: watch.ScalarSeries) -> str:
    first, last, most = series.value[0], series.value[-1], max(value or 0.0 for value in series.value)
    if first == last == most:
        return number(first)
    return f"{number(first)} at first, {number(last)} at the end; highest {number(most)}"


def _means(record: WatchRecord, series: watch.ScalarSeries) -> str:
    """Return the means that the verdict compares."""
    course, last = course_of(series, record.lr), series.value[-1]
    assert course is not None  # a series has values
    end = course.end if last is not None and math.isfinite(last) else None
    return f"{course.began(loss)}, {loss(end)} over the last"


def _course(record: WatchRecord, series: watch.ScalarSeries) -> str:
    """Return the means that the verdict compares, the lowest value, and the cost of guessing."""
    means = _means(record, series)
    finite = [(value, step) for step, value in series.finite]
    if not finite:
        return means
    low, step = min(finite)
    n = len(series.step)
    of_recorded = "" if n == series.step[-1] + 1 else f" of the {n:,} recorded"
    lowest = f"lowest{of_recorded} {number(low)}, at step {step}"
    chance = cost_of_guessing(record.facts, record.loss) if len(record.loss) == 1 else None
    if chance is None:
        return f"{means}; {lowest}"
    of_classes = next((one for one in record.facts.criteria if one.is_training and one.classes), None)
    guess = f"chance level {loss(chance)}" if of_classes else f"the best constant output gives {loss(chance)}"
    words, first, equal = f"{means}; {lowest}; {guess}", finite[0][0], 0.0
    if of_classes and of_classes.label_entropy and not of_classes.is_weighted:
        # Scores that are all alike cost more than guessing by the shares of the labels
        equal = chance * math.log(of_classes.classes or 1) / of_classes.label_entropy
    if not 0 < equal <= first / _HUGE:
        return words
    why = "the initial logits are too large (weights of the last layer, a temperature)"
    return f"{words}; {number(first)} at the first step is {first / equal:.0f}x that of equal scores: {why}"
