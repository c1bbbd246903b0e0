"""`diff` of two results of one command: number by number, with the settings under which they were made.

The statistics of a layer may differ by what the kernels of two machines round differently. If the values of an
output differ by a relative L2 of `e`, then its mean, its standard deviation and its root mean square `rms` differ
by at most `e * rms` (Cauchy-Schwarz); extremes of `n` values by `e * (|extreme| + rms * (sqrt(2 ln n) + 2))`, the
expected largest of `n` normal errors and two standard deviations more.
"""

import math
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from os import PathLike
from typing import Any

from modelscope_cli.analysis.comparison.request import rounding_at
from modelscope_cli.errors import UsageError
from modelscope_cli.records.diff import (
    Cause,
    DiffRecord,
    DiffSide,
    FigureDifference,
    SettingDifference,
    count_up,
    first_divergence,
)
from modelscope_cli.records.naming import percent, some
from modelscope_cli.records.reading import read
from modelscope_cli.records.run import Invocation, Record
from modelscope_cli.records.stats import ActivationStats, InputStats, StatsRecord
from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.rules.training.progress import accuracy_of, course_of, late_loss

_SURE = 2.0  # standard errors


def compare_results(a: Any, b: Any, tolerance: float | None, invoked: Invocation) -> DiffRecord:
    """Compare every number in the tables of two results of one command, and of `stats` also of the inputs.

    Args:
        a, b: records, or the files or folders where they were saved.
        tolerance: the largest difference that counts as equal, relative to A's number, and for the statistics of a
            layer to the size of its values; None for the rounding of the dtype for these, and 0 for others.
    """
    ours, theirs = _result(a), _result(b)
    if ours.command != theirs.command:
        message = f"'{_name(a)}' is a result of {ours.command} and '{_name(b)}' of {theirs.command}"
        raise UsageError(message, "give two results of the same command")
    rows = tuple(_differences(ours, theirs, tolerance))
    largest, reason = tolerance or 0.0, "given" if tolerance is not None else "saved results"
    if tolerance is None and isinstance(ours, StatsRecord) and ours.layers:
        last = (*ours.layers[-1:], *theirs.layers[-1:])
        coarser = max((row.dtype for row in last), key=lambda dtype: rounding_at(1, dtype))
        largest = rounding_at(last[0].order, coarser)
        reason = f"rounding of {coarser} in the last layer, relative to the size of its values"
    run = replace(ours.run, command="diff", argv=invoked.argv, input=None, elapsed_ms=invoked.elapsed_ms)
    other, has_losses = theirs.run, isinstance(ours, WatchRecord) and ours.loss and theirs.loss
    of_a, of_b = _settings(ours), _settings(theirs)
    settings = [(one, of_a.get(one, "-"), of_b.get(one, "-")) for one in dict.fromkeys((*of_a, *of_b))]
    return DiffRecord(
        run=run,
        b=DiffSide(other.model, other.device, other.dtype, other.seed, None),
        mode=None,
        tolerance=largest,
        tolerance_reason=reason,
        first_divergence=first_divergence(rows),
        totals=count_up(rows),
        figures=rows,
        settings=tuple(SettingDifference(*one) for one in settings if one[1] != one[2]),
        causes=tuple(_compared(ours, theirs)) if has_losses else (),
    )


def _result(side: Any) -> Any:
    record = read(side) if isinstance(side, str | PathLike) else side
    if not isinstance(record, Record):
        hint = "give the weights themselves, A.safetensors and B.safetensors"
        raise UsageError(f"'{_name(side)}' is a result of {record.command}, which cannot be compared", hint)
    return record


def _name(side: Any) -> str:
    return side.run.model.name if isinstance(side, Record) else str(side)


def unit_of(row: ActivationStats | InputStats, key: str, value: float, rounding: float) -> float:
    """Return the size relative to which a statistic changes where its values change by `rounding`; 0 for counts."""
    n = max(row.numel, 1)
    bounds = (abs(one) for one in (row.min, row.max) if one is not None)
    rms = row.rms if row.rms is not None else max(bounds, default=abs(value))
    if key in ("mean", "std", "rms"):
        return rms
    if key in ("min", "max") or key[1:].replace(".", "").isdigit():  # a quantile, such as p99.9
        return abs(value) + rms * (math.sqrt(2 * math.log(n)) + 2)
    if key in ("zero", "near_zero"):  # the share of values that near to the threshold, and a few single ones
        return 1 + 4 / (n * rounding)
    return 0.0


def _differences(a: Record, b: Record, tolerance: float | None) -> Iterator[FigureDifference]:
    of_a, of_b = _labelled(a), _labelled(b)  # those of A in its order, then those of B alone
    for place in dict.fromkeys((*of_a, *of_b)):
        if place not in of_a or place not in of_b:
            yield FigureDifference(name=place[0], figure="", status="removed" if place in of_a else "added")
            continue
        (row, numbers), (other, others) = of_a[place], of_b[place]
        is_statistic = isinstance(row, ActivationStats | InputStats)
        rounding = rounding_at(getattr(row, "order", 1), row.dtype, other.dtype) if is_statistic else 0.0
        allowed = rounding if tolerance is None else tolerance
        for key, value in numbers.items():
            ours, theirs = _number(value), _number(others.get(key))
            if key in others and (ours is not None or theirs is not None):
                unit = unit_of(row, key, ours or 0.0, rounding) if is_statistic else abs(ours or 0.0)
                yield _difference(place[0], key, ours, theirs, unit, allowed)


def _number(value: Any) -> float | None:
    """Return a finite number as float; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _difference(
    label: str, figure: str, a: float | None, b: float | None, unit: float, tolerance: float
) -> FigureDifference:
    if a is None or b is None:
        problem = f"only {'B' if a is None else 'A'} has a number"
        return FigureDifference(name=label, figure=figure, a=a, b=b, status="changed", problem=problem)
    gap = abs(a - b)
    relative = gap / unit if unit else math.inf if gap else 0.0
    return FigureDifference(
        name=label,
        figure=figure,
        a=a,
        b=b,
        status="same" if relative <= tolerance else "changed",
        max_abs=gap,
        rel_l2=relative,
        differing=int(gap > 0),
    )


def _labelled(record: Record) -> dict[tuple[str, int], tuple[Any, dict[str, Any]]]:
    """Return the rows by label, numbered where several have the same, each with its bare numbers by key."""
    rows: dict[tuple[str, int], tuple[Any, dict[str, Any]]] = {}
    for one in record.inputs if isinstance(record, StatsRecord) else ():
        rows[f"input {one.name}".strip(), 1] = one, {x.name: getattr(one, x.name) for x in fields(InputStats)}
    seen: Counter[str] = Counter()
    for (label, row), values in zip(record.labelled(), record.to_rows(), strict=True):
        seen[label] += 1
        figures = {key: value for key, value in [*values.items()][1:] if key != "order"}
        rows[label, seen[label]] = row, figures
    return rows


def _evaluation(record: WatchRecord) -> tuple[float | None, float | None, int]:
    """Return the loss of the last evaluation, its accuracy, and on how many labels that is."""
    for one in record.facts.criteria:
        if not one.is_training and (cost := late_loss(one)) is not None:
            accuracy, _, rows = accuracy_of(one)
            return cost, accuracy, rows
    return None, None, 0


def _outcome_of(record: WatchRecord) -> dict[str, str]:
    """Return what became of a training, and what it was run with, by name."""
    codes = [one.code for one in record.findings if one.follows is None]
    found = {"verdict": " ".join([record.verdict, *codes]), "steps": str(record.steps)}
    for series in record.loss[:1]:
        if (course := course_of(series, record.lr)) is not None:
            found["loss"] = f"{course.end:.4g}" if math.isfinite(course.end) else "not finite"
    cost, words = _evaluation(record)[0], record.run.argv
    facts, name = record.facts, record.run.model.name
    found["evaluation"] = f"{cost:.4g}" if cost is not None else ""
    found["arguments"] = shlex.join(words[words.index(name) + 1 :]) if name in words else ""
    for own in facts.optimizers[:1]:
        found |= {"optimizer": own.optimizer, "weight decay": f"{own.weight_decay:g}"}
        found |= {key: ", ".join(f"{value:g}" for value in values) for key, values, _ in own.unusual}
    for rate in record.lr[:1]:
        ends = (rate.value[0] or 0.0, rate.value[-1] or 0.0)
        found["learning rate"] = " to ".join(dict.fromkeys(map("{:g}".format, ends)))
    found["schedule"] = ", ".join(one.schedule for one in facts.schedules)
    found["precision"] = ", ".join(facts.models[0].dtypes) if facts.models else ""
    for given in facts.inputs[:1]:
        mean, std = (one[0] or 0.0 for one in (given.series.mean, given.series.std))
        found |= {"batch": "x".join(map(str, given.shape)), "first batch": f"mean {mean:.6g}, std {std:.6g}"}
    parameters = [(one.name, math.prod(one.shape), one.facts) for one in record.parameters if one.facts]
    start = math.sqrt(sum(n * own.start_rms**2 for _, n, own in parameters))
    found |= {"parameters": f"{sum(n for _, n, _ in parameters):,}", "initial weights": f"norm {start:.6g}"}
    found["frozen"] = some(one for one, _, own in parameters if not own.requires_grad)
    return {key: value or "none" for key, value in found.items()}


def _compared(a: WatchRecord, b: WatchRecord) -> Iterator[Cause]:
    """Yield which of two trainings is better, beyond chance, and where their losses part."""
    (_, p, n), (_, q, m) = map(_evaluation, (a, b))
    losses = [one.loss[0] for one in (a, b)]
    ours, theirs = (course_of(one, side.lr) for one, side in zip(losses, (a, b), strict=True))
    if ours is None or theirs is None:
        return
    if ours.has_broken != theirs.has_broken:
        gap, noise = 1.0 if ours.has_broken else -1.0, 0.0
        text = f"the loss of {'AB'[theirs.has_broken]} is no longer finite"
    elif p is not None and q is not None:
        gap, noise = q - p, _SURE * math.sqrt(p * (1 - p) / n + q * (1 - q) / m)
        text = f"accuracy {percent(p)} in A and {percent(q)} in B in the last evaluation, on {n:,} and {m:,} labels"
    else:
        gap, noise = ours.end - theirs.end, _SURE * math.hypot(ours.error, theirs.error)
        text = f"loss {ours.end:.4g} in A and {theirs.end:.4g} in B over the last steps"
    which = f"{'AB'[gap > 0]} is better" if abs(gap) > noise else "neither is significantly better"
    yield Cause("outcome", None, f"{which}: {text}", "")
    values = [dict(zip(one.step, one.value, strict=True)) for one in losses]
    steps = [step for step, x in values[0].items() if x is not None and values[1].get(step) is not None]
    pairs = [[one[step] or 0.0 for step in steps] for one in values]
    first = next((step for step, x, y in zip(steps, *pairs, strict=True) if x != y), None)
    text = f"the losses are equal in all {len(steps)} steps where both are finite"
    text = text if first is None else f"the losses differ from step {first} on"
    yield Cause("curves", None, text, "")


def _settings(record: Any) -> dict[str, str]:
    """Return what a result was made with, by name."""
    run, given = record.run, record.run.input
    weights = run.model.weights
    found = {
        "model": run.model.described,
        "weights": " ".join(filter(None, (weights.resolved, (weights.sha256 or "")[:12]))),
        "device": run.device,
        "dtype": run.dtype,
        "seed": str(run.seed),
    }
    if given is not None:
        files = f": {some(given.files, 3)}" if given.files else ""
        shapes = ["x".join(map(str, one)) or "scalar" for one in given.shape]
        found["input"] = f"{given.source} {some(shapes, 2 if len(shapes) == 2 else 1)}{files}"
        found["preprocessing"] = given.preprocessing or "none"
    for name in ("mode", "images", "near_zero"):
        if (value := getattr(record, name, None)) is not None:
            found[name.replace("_", " ")] = str(value)
    if hooks := getattr(record, "hooks", ()):
        found["hooks"] = ", ".join(hook.spec for hook in hooks)
    if isinstance(record, WatchRecord):
        found |= _outcome_of(record)
    of_training = getattr(record, "settings", None) or {}
    found |= {f"setting {name}": str(value) for name, value in of_training.items()}
    return found | {name.replace("version", "modelscope"): str(one) for name, one in run.versions.items()}
