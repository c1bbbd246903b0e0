"""What is seen to go wrong in the course of a training: one function for each rule. Standard library only."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modelscope_cli.records.naming import is_rectifier, some
from modelscope_cli.records.watch import (
    BETWEEN,
    GRADIENT,
    INPUT,
    LOSS,
    OUTPUT,
    PARAMETER,
    Birth,
    Event,
    ScalarSeries,
    WatchedLayer,
    WatchedParameter,
    labelling,
)

_LASTING = 3  # records in a row, the last of the run among them, before something is called a state
_MIN_RECORDS = 8  # fewer tell nothing about a course

Row = WatchedLayer | WatchedParameter


class Course(Protocol):
    """What is judged: how a training went, be it watched or our own."""

    @property
    def layers(self) -> tuple[WatchedLayer, ...]: ...
    @property
    def parameters(self) -> tuple[WatchedParameter, ...]: ...
    @property
    def loss(self) -> tuple[ScalarSeries, ...]: ...
    @property
    def events(self) -> tuple[Event, ...]: ...
    @property
    def births(self) -> tuple[Birth, ...]: ...


@dataclass(frozen=True, slots=True)
class TrainingSighting:
    """One place where a rule is broken (None: the training), since when, the value, and what was seen in words."""

    row: Row | None
    step: int
    value: float | None
    message: str


def _likewise(course: Course, rows: Sequence[Row], word: str = "likewise") -> str:
    label = labelling(course.layers, course.parameters)
    return f"; {word} {some(map(label, rows))}" if rows else ""


def _followed(course: Course, rows: Sequence[tuple[int, Any, Row]]) -> str:
    """Name what comes after the first of `(step, _, layer or parameter)`, sorted by step."""
    word = "then" if rows[-1][0] > rows[0][0] else "likewise"
    return _likewise(course, [row for _, _, row in rows[1:]], word)


def _lasting(values: Sequence[float | None], is_wrong: Callable[[float], bool]) -> int | None:
    """Return where the last unbroken run of wrong values begins, None where there is none long enough."""
    start = len(values)
    while start > 0 and (value := values[start - 1]) is not None and is_wrong(value):
        start -= 1
    return start if len(values) - start >= _LASTING else None


def _born(course: Course, *kinds: str) -> Birth | None:
    return next((birth for birth in course.births if not kinds or birth.what in kinds), None)


def _row_of(course: Course, birth: Birth) -> Row | None:
    rows: tuple[Row, ...] = course.parameters if birth.what == GRADIENT else course.layers
    place = birth.model, birth.name, birth.call
    return next(
        (row for row in rows if (row.model, row.name, getattr(row, "call", 0)) == place),
        None,
    )


def _cause(course: Course, step: int) -> str:
    """Say what was not finite before the loss of a step was."""
    birth = next((birth for birth in course.births if step - 1 <= birth.step <= step), None)
    if birth is None:
        return ""
    if birth.what == LOSS:
        return "; the output of every layer is finite, so it begins in the loss itself"
    since = f" at step {birth.step}" if birth.step != step and birth.what != PARAMETER else ""
    return f"; what comes first: {birth.words}{since}"


def loss_not_finite(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    for series in course.loss:
        values = [math.nan if value is None else value for value in series.value]
        place = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        if place is not None:
            step = series.step[place]
            is_over = any(map(math.isfinite, values[place:]))
            when = f"at step {step}" if is_over else f"from step {step} on"
            yield TrainingSighting(
                None, step, None, f"the loss is {values[place]} {when}{_cause(course, step)}"
            )
            return
    for event in course.events:
        if event.kind == "loss":
            step = event.step or 0
            yield TrainingSighting(None, step, None, event.message + _cause(course, step))
            return


def output_not_finite(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    spoilt = []
    for layer in course.layers:
        counts = zip(layer.series.step, layer.series.nan_count, layer.series.inf_count, strict=True)
        first = next(((step, nan + inf) for step, nan, inf in counts if nan + inf > threshold), None)
        if first is not None:
            spoilt.append((first[0], layer.order, layer, first[1]))
    earliest, birth = _born(course), _born(course, INPUT, OUTPUT, BETWEEN)
    if birth is not None and (not spoilt or birth.step <= min(spoilt, key=lambda one: one[:2])[0]):
        row = _row_of(course, birth)
        later = [layer for _, _, layer, _ in spoilt if layer is not row]
        more = f"; then {some(map(labelling(course.layers, course.parameters), later))}" if later else ""
        words = f"the first NaN or infinite values appear at step {birth.step}: {birth.words}{more}"
        yield TrainingSighting(row, birth.step, None, words)
    elif spoilt and (earliest is None or earliest.step >= min(spoilt, key=lambda one: one[:2])[0]):
        step, _, layer, count = min(spoilt, key=lambda one: one[:2])
        is_first = layer.order == min(one.order for one in course.layers if one.model == layer.model)
        cause = "; it is the first layer: look at its input and its weights" if is_first else ""
        more = f"; {len(spoilt) - 1} more layers then or later" if len(spoilt) > 1 else ""
        words = f"the first NaN or infinite values appear here, {count} of them at step {step}{more}{cause}"
        yield TrainingSighting(layer, step, count, words)


def gradient_not_finite(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    birth = _born(course, GRADIENT)
    if birth is not None:
        words = f"its gradient is not finite at step {birth.step}, where every output and the loss are"
        yield TrainingSighting(_row_of(course, birth), birth.step, None, words)
        return
    found: dict[int, list[WatchedParameter]] = {}
    for one in course.parameters:
        norms = zip(one.series.step, one.series.grad_norm, strict=True)
        step = next((s for s, norm in norms if norm is not None and not math.isfinite(norm)), None)
        if step is not None:
            found.setdefault(step, []).append(one)
    if found:
        step = min(found)
        one, *others = found[step]
        words = f"its gradient is not finite at step {step}{_likewise(course, others)}"
        yield TrainingSighting(one, step, 1 + len(others), words)


def diverging(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    for series in course.loss:
        pairs = zip(series.step, series.value, strict=True)
        finite = [(step, value) for step, value in pairs if value is not None and math.isfinite(value)]
        if len(finite) < _MIN_RECORDS:
            continue
        values = [value for _, value in finite]
        quarter = max(len(values) // 4, 2)
        least = min(statistics.median(values[i : i + quarter]) for i in range(len(values) - quarter + 1))
        last = statistics.median(values[-quarter:])
        scale = max(abs(least), 1e-3)
        if (last - least) / scale > threshold - 1:
            lowest = values.index(min(values))
            limit = least + (threshold - 1) * scale
            since = next((step for step, value in finite[lowest:] if value > limit), finite[lowest][0])
            words = f"the loss was {least:.3g} and is {last:.3g} at the end"
            yield TrainingSighting(None, since, (last - least) / scale + 1, words)


def dead(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    """The first ReLU to die; one that is given nothing but zeros dies of it."""
    silent = []
    for layer in course.layers:
        if is_rectifier(layer.type):
            start = _lasting(layer.series.zero_fraction, lambda share: share > threshold)
            if start is not None:
                silent.append((layer.series.step[start], layer.order, layer))
    if silent:
        silent.sort(key=lambda one: one[:2])
        step, _, layer = silent[0]
        last = layer.series.zero_fraction[-1] or 0.0
        words = f"{last:.1%} of its output is zero, over {threshold:.0%} since step {step}"
        yield TrainingSighting(layer, step, last, words + _followed(course, silent))


def exploding(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    """The first layer of those whose outputs have grown so much; the ones after it only pass it on."""
    grown = []
    for layer in course.layers:
        sizes = [
            None if mean is None or std is None else math.hypot(mean, std)
            for mean, std in zip(layer.series.mean, layer.series.std, strict=True)
        ]
        first = next((size for size in sizes if size), None)
        if first is None:
            continue
        start = _lasting(sizes, lambda size, limit=threshold * first: size > limit)  # type: ignore[misc]
        if start is not None:
            grown.append((layer.series.step[start], layer.order, layer, (sizes[-1] or 0.0) / first))
    if grown:
        step, _, layer, factor = min(grown, key=lambda one: one[:2])
        more = f"; {len(grown) - 1} more layers likewise" if len(grown) > 1 else ""
        words = f"its values have grown {_times(factor)}, over {_times(threshold)} since step {step}{more}"
        yield TrainingSighting(layer, step, factor, words)


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor < 1e6 else f"{factor:.2g} times"


def _weights(course: Course) -> list[WatchedParameter]:
    """Weights; biases and scales of norms live on another scale and may start at zero."""
    return [one for one in course.parameters if len(one.shape) > 1]


def _gradients(
    course: Course, is_wrong: Callable[[float], bool], words: str, sign: int
) -> Iterator[TrainingSighting]:
    """The first weight; of those that begin at the same step the one furthest off, upwards where `sign` is 1."""
    rows = []
    for one in _weights(course):
        start = _lasting(one.series.grad_norm, is_wrong)
        if start is not None:
            rows.append((one.series.step[start], -sign * (one.series.grad_norm[-1] or 0.0), one))
    if rows:
        rows.sort(key=lambda row: row[:2])
        step, last, one = rows[0]
        text = f"its gradient's norm is {abs(last):.2g}, {words} since step {step}"
        yield TrainingSighting(one, step, abs(last), text + _followed(course, rows))


def vanishing(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    return _gradients(course, lambda norm: norm < threshold, f"below {threshold:g}", -1)


def exploding_gradients(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    return _gradients(course, lambda norm: threshold < norm < math.inf, f"over {threshold:g}", 1)


def large_updates(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    """The first weight; of those that begin at the same step the one that changes most."""
    rows = []
    for one in _weights(course):
        pairs = zip(one.series.step, one.series.update_ratio, strict=True)
        known = [(step, ratio) for step, ratio in pairs if ratio is not None]
        large = [(step, ratio) for step, ratio in known if ratio > threshold]
        # One large step, as the first of Adam may be, is no state.
        if len(large) >= max(_LASTING, len(known) / 4):
            rows.append((large[0][0], -statistics.median(ratio for _, ratio in large), one))
    if rows:
        rows.sort(key=lambda row: row[:2])
        step, change, one = rows[0]
        words = (
            f"single steps change it by {-change:.0%} of its size, over {threshold:.0%} first at step {step}"
        )
        yield TrainingSighting(one, step, -change, words + _followed(course, rows))


def small_updates(course: Course, threshold: float) -> Iterator[TrainingSighting]:
    """Small all the time: at the end of a schedule they are meant to be."""
    rows = []
    for one in _weights(course):
        ratios = [ratio for ratio in one.series.update_ratio if ratio is not None]
        if len(ratios) >= _MIN_RECORDS and max(ratios) < threshold:
            rows.append((max(ratios), one))
    if rows:
        most, one = min(rows, key=lambda row: row[0])
        others = [other for _, other in rows if other is not one]
        words = f"no step changes it by more than {most:.1g} of its size, {threshold:g} at least is usual"
        yield TrainingSighting(one, one.series.step[0], most, words + _likewise(course, others))
