"""MS7xx: what goes wrong while a model is trained. Standard library only."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from modelscope_cli.records.check import RuleInfo
from modelscope_cli.records.watch import (
    Event,
    ScalarSeries,
    TrainingFinding,
    WatchedLayer,
    WatchedParameter,
)

ERROR, WARNING = "error", "warning"
_RECTIFIERS = ("ReLU", "ReLU6")
_LASTING = 3  # records in a row, the last of the run among them, before something is called a state
_MIN_RECORDS = 8  # fewer tell nothing about a course
_SHOWN = 3  # names in one message


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


@dataclass(frozen=True, slots=True)
class Sighting:
    """One place where a rule is broken, since when, the value, and what was seen in words."""

    layer: str | None
    step: int
    value: float | None
    message: str


@dataclass(frozen=True, slots=True)
class TrainingRule:
    """A named check of a run: a finding lies beyond `threshold`, and `source` says where that comes from."""

    code: str
    name: str
    severity: str
    sentence: str
    threshold: float
    measure: str
    source: str
    hint: str
    judge: Callable[[Course, float], Iterator[Sighting]]

    def info(self) -> RuleInfo:
        """Return the rule as it is listed."""
        return RuleInfo(
            code=self.code,
            name=self.name,
            severity=self.severity,
            sentence=self.sentence,
            threshold=self.threshold,
            measure=self.measure,
            source=self.source,
            hint=self.hint,
        )


def judge_training(course: Course) -> tuple[TrainingFinding, ...]:
    """Return what the rules find: errors first, then as they happened, for one thing leads to the next."""
    found = [
        TrainingFinding(
            rule.code,
            rule.name,
            rule.severity,
            s.layer,
            s.step,
            s.value,
            rule.threshold,
            s.message,
            rule.hint,
        )
        for rule in RULES
        for s in rule.judge(course, rule.threshold)
    ]
    return tuple(sorted(found, key=lambda finding: (finding.severity != ERROR, finding.since_step or 0)))


def _label(course: Course, row: WatchedLayer | WatchedParameter) -> str:
    """Return `relu#1`, or `Generator/relu#1` where there are several models."""
    models = {layer.model for layer in course.layers} | {one.model for one in course.parameters}
    name = row.name or row.model
    if isinstance(row, WatchedLayer) and row.call:
        name += f"#{row.call}"
    return f"{row.model}/{name}" if len(models) > 1 and row.name else name


def _some(labels: Sequence[str]) -> str:
    more = len(labels) - _SHOWN
    return ", ".join(labels[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _lasting(values: Sequence[float | None], is_wrong: Callable[[float], bool]) -> int | None:
    """Return where the last unbroken run of wrong values begins, None where there is none long enough."""
    start = len(values)
    while start > 0 and (value := values[start - 1]) is not None and is_wrong(value):
        start -= 1
    return start if len(values) - start >= _LASTING else None


def _loss_not_finite(course: Course, threshold: float) -> Iterator[Sighting]:
    for series in course.loss:
        values = [math.nan if value is None else value for value in series.value]
        place = next((i for i, value in enumerate(values) if not math.isfinite(value)), None)
        if place is not None:
            step = series.step[place]
            is_over = any(map(math.isfinite, values[place:]))
            when = f"at step {step}" if is_over else f"from step {step} on"
            yield Sighting(None, step, None, f"the loss is {values[place]} {when}")
            return
    for event in course.events:
        if event.kind == "loss":
            yield Sighting(None, event.step or 0, None, event.message)
            return


def _output_not_finite(course: Course, threshold: float) -> Iterator[Sighting]:
    spoilt = []
    for layer in course.layers:
        counts = zip(layer.series.step, layer.series.nan_count, layer.series.inf_count, strict=True)
        first = next(((step, nan + inf) for step, nan, inf in counts if nan + inf > threshold), None)
        if first is not None:
            spoilt.append((first[0], layer.order, layer, first[1]))
    if spoilt:
        step, _, layer, count = min(spoilt, key=lambda one: one[:2])
        is_first = layer.order == min(one.order for one in course.layers if one.model == layer.model)
        cause = "; it is the first layer: look at its input and its weights" if is_first else ""
        more = f"; {len(spoilt) - 1} more layers then or later" if len(spoilt) > 1 else ""
        words = f"the first NaN or infinite values appear here, {count} of them at step {step}{more}{cause}"
        yield Sighting(_label(course, layer), step, count, words)


def _gradient_not_finite(course: Course, threshold: float) -> Iterator[Sighting]:
    found: dict[int, list[WatchedParameter]] = {}
    for one in course.parameters:
        norms = zip(one.series.step, one.series.grad_norm, strict=True)
        step = next((s for s, norm in norms if norm is not None and not math.isfinite(norm)), None)
        if step is not None:
            found.setdefault(step, []).append(one)
    if found:
        step = min(found)
        label, *others = [_label(course, one) for one in found[step]]
        words = f"its gradient is not finite at step {step}{_likewise(others)}"
        yield Sighting(label, step, 1 + len(others), words)


def _diverging(course: Course, threshold: float) -> Iterator[Sighting]:
    for series in course.loss:
        values = [value for value in series.value if value is not None and math.isfinite(value)]
        if len(values) < _MIN_RECORDS:
            continue
        quarter = max(len(values) // 4, 2)
        least = min(statistics.median(values[i : i + quarter]) for i in range(len(values) - quarter + 1))
        last = statistics.median(values[-quarter:])
        scale = max(abs(least), 1e-3)
        if (last - least) / scale > threshold - 1:
            lowest = values.index(min(values))
            at = next(
                (i for i in range(lowest, len(values)) if values[i] > least + (threshold - 1) * scale), lowest
            )
            words = f"the loss was {least:.3g} and is {last:.3g} at the end"
            yield Sighting(None, series.step[at], (last - least) / scale + 1, words)


def _dead(course: Course, threshold: float) -> Iterator[Sighting]:
    """The first ReLU to die; one that is given nothing but zeros dies of it."""
    dead = []
    for layer in course.layers:
        if layer.type in _RECTIFIERS:
            start = _lasting(layer.series.zero_fraction, lambda share: share > threshold)
            if start is not None:
                dead.append((layer.series.step[start], layer.order, layer))
    if dead:
        dead.sort(key=lambda one: one[:2])
        step, _, layer = dead[0]
        last = layer.series.zero_fraction[-1] or 0.0
        labels = [_label(course, other) for *_, other in dead[1:]]
        then = f"; then {_some(labels)}" if labels else ""
        words = f"{last:.1%} of its output is zero, over {threshold:.0%} since step {step}{then}"
        yield Sighting(_label(course, layer), step, last, words)


def _exploding(course: Course, threshold: float) -> Iterator[Sighting]:
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
        yield Sighting(_label(course, layer), step, factor, words)


def _times(factor: float) -> str:
    return f"{factor:,.0f} times" if factor < 1e6 else f"{factor:.2g} times"


def _weights(course: Course) -> list[WatchedParameter]:
    """Weights; biases and scales of norms live on another scale and may start at zero."""
    return [one for one in course.parameters if len(one.shape) > 1]


def _likewise(labels: Sequence[str]) -> str:
    return f"; likewise {_some(labels)}" if labels else ""


def _gradients(
    course: Course, is_wrong: Callable[[float], bool], words: str, sign: int
) -> Iterator[Sighting]:
    """The first weight; of those that begin at the same step the one furthest off, upwards where `sign` is 1."""
    rows = []
    for one in _weights(course):
        start = _lasting(one.series.grad_norm, is_wrong)
        if start is not None:
            rows.append((one.series.step[start], -sign * (one.series.grad_norm[-1] or 0.0), one))
    if rows:
        (step, last, one), *others = sorted(rows, key=lambda row: row[:2])
        labels = [_label(course, other) for *_, other in others]
        text = f"its gradient's norm is {abs(last):.2g}, {words} since step {step}{_likewise(labels)}"
        yield Sighting(_label(course, one), step, abs(last), text)


def _vanishing(course: Course, threshold: float) -> Iterator[Sighting]:
    return _gradients(course, lambda norm: norm < threshold, f"below {threshold:g}", -1)


def _exploding_gradients(course: Course, threshold: float) -> Iterator[Sighting]:
    return _gradients(course, lambda norm: threshold < norm < math.inf, f"over {threshold:g}", 1)


def _large_updates(course: Course, threshold: float) -> Iterator[Sighting]:
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
        (step, change, one), *others = sorted(rows, key=lambda row: row[:2])
        labels = [_label(course, other) for *_, other in others]
        words = (
            f"single steps change it by {-change:.0%} of its size, over {threshold:.0%} first at step {step}"
        )
        yield Sighting(_label(course, one), step, -change, words + _likewise(labels))


def _small_updates(course: Course, threshold: float) -> Iterator[Sighting]:
    """Small all the time: at the end of a schedule they are meant to be."""
    rows = []
    for one in _weights(course):
        ratios = [ratio for ratio in one.series.update_ratio if ratio is not None]
        if len(ratios) >= _MIN_RECORDS and max(ratios) < threshold:
            rows.append((max(ratios), one))
    if rows:
        most, one = min(rows, key=lambda row: row[0])
        others = [_label(course, other) for _, other in rows if other is not one]
        words = f"no step changes it by more than {most:.1g} of its size, {threshold:g} at least is usual"
        yield Sighting(_label(course, one), one.series.step[0], most, words + _likewise(others))


RULES = (
    TrainingRule(
        code="MS701",
        name="loss-not-finite",
        severity=ERROR,
        sentence="the loss becomes NaN or infinite",
        threshold=0,
        measure="losses that are not finite",
        source="IEEE 754: NaN passes through every sum, and into every weight",
        hint="lower the learning rate, clip the gradients; look for log, sqrt or a division in the loss",
        judge=_loss_not_finite,
    ),
    TrainingRule(
        code="MS702",
        name="output-not-finite",
        severity=ERROR,
        sentence="a layer gives NaN or infinite values",
        threshold=0,
        measure="values that are not finite in one output",
        source="IEEE 754: NaN passes through every sum",
        hint="look for a division, a logarithm or an overflow in it, or a learning rate that is too high",
        judge=_output_not_finite,
    ),
    TrainingRule(
        code="MS703",
        name="gradient-not-finite",
        severity=ERROR,
        sentence="an optimizer is given gradients that are NaN or infinite",
        threshold=0,
        measure="parameters whose gradient is not finite",
        source="IEEE 754: NaN passes through every sum, and into every weight",
        hint="clip the gradients; with float16 use a gradient scaler, which skips such steps",
        judge=_gradient_not_finite,
    ),
    TrainingRule(
        code="MS704",
        name="loss-diverges",
        severity=ERROR,
        sentence="the loss is far above what it had been",
        threshold=2,
        measure="times the least loss that was kept for a quarter of the run",
        source="own choice: a loss twice as high as it had been for a quarter of the run",
        hint="lower the learning rate, warm it up, or clip the gradients (clip_grad_norm_)",
        judge=_diverging,
    ),
    TrainingRule(
        code="MS705",
        name="dead-units",
        severity=WARNING,
        sentence="a ReLU gives next to nothing but zeros, and keeps doing so",
        threshold=0.9,
        measure="share of zeros in what a ReLU gives, to the end",
        source="a ReLU of a symmetric input is zero half of the time; own choice: nine tenths",
        hint="lower the learning rate, initialise by kaiming_normal_, add a norm, or use a leaky activation",
        judge=_dead,
    ),
    TrainingRule(
        code="MS706",
        name="exploding-activations",
        severity=WARNING,
        sentence="the values of a layer keep growing",
        threshold=100,
        measure="times the size of its first values, to the end",
        source="own measurement: 7 times, at the scores, over a healthy run of samples/train.py",
        hint="lower the learning rate, add a norm behind the layer, or weight decay",
        judge=_exploding,
    ),
    TrainingRule(
        code="MS707",
        name="vanishing-gradients",
        severity=WARNING,
        sentence="next to no gradient arrives at a weight",
        threshold=1e-7,
        measure="norm of a weight's gradient, to the end",
        source="float32 has 2**-23, about 1.2e-7: added to a weight near 1, nothing changes",
        hint="add shortcuts or norms, look for dead or saturated activations behind it, or freeze it if meant",
        judge=_vanishing,
    ),
    TrainingRule(
        code="MS708",
        name="exploding-gradients",
        severity=WARNING,
        sentence="the gradient of a weight is very large",
        threshold=1e3,
        measure="norm of a weight's gradient, to the end",
        source="Pascanu, Mikolov, Bengio 2013, section 3.2: clip at 0.5 to 10 times the usual norm, near 1",
        hint="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before the step, or a lower learning rate",
        judge=_exploding_gradients,
    ),
    TrainingRule(
        code="MS709",
        name="large-updates",
        severity=WARNING,
        sentence="single steps change a weight by a large share of its size",
        threshold=0.1,
        measure="|change| / |weight|, in a quarter of the steps",
        source="A. Karpathy, CS231n, Ratio of weights:updates: about 1e-3; 1e-1 is a hundred times that",
        hint="lower the learning rate, or warm it up",
        judge=_large_updates,
    ),
    TrainingRule(
        code="MS710",
        name="small-updates",
        severity=WARNING,
        sentence="no step of the whole run changes a weight to speak of",
        threshold=1e-5,
        measure="|change| / |weight|, in every step",
        source="A. Karpathy, CS231n, Ratio of weights:updates: about 1e-3; 1e-5 is a hundredth of that",
        hint="raise the learning rate, or freeze these weights if that is meant",
        judge=_small_updates,
    ),
)
