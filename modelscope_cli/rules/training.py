"""MS7xx: what goes wrong while a model is trained. Standard library only."""

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from modelscope_cli.records.check import RuleInfo
from modelscope_cli.records.watch import ScalarSeries, TrainingFinding, WatchedLayer, WatchedParameter

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
    """Return what the rules find: errors first, then in the order of the rules."""
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
    return tuple(sorted(found, key=lambda finding: finding.severity != ERROR))


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
        for step, value in zip(series.step, series.value, strict=True):
            if value is not None and not math.isfinite(value):
                yield Sighting(None, step, None, f"the loss is {value} from step {step} on")
                return


def _output_not_finite(course: Course, threshold: float) -> Iterator[Sighting]:
    first: tuple[int, int, WatchedLayer] | None = None
    spoilt = []
    for layer in course.layers:
        counts = zip(layer.series.step, layer.series.nan_count, layer.series.inf_count, strict=True)
        step = next((step for step, nan, inf in counts if nan + inf > threshold), None)
        if step is not None:
            spoilt.append(layer)
            if first is None or (step, layer.order) < first[:2]:
                first = step, layer.order, layer
    if first is not None:
        step, _, layer = first
        at = layer.series.step.index(step)
        count = layer.series.nan_count[at] + layer.series.inf_count[at]
        others = f"; {len(spoilt) - 1} layers with it or after it" if len(spoilt) > 1 else ""
        words = f"the first values that are not finite appear here at step {step}: {count} of them{others}"
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
        labels = [_label(course, one) for one in found[step]]
        words = f"gradients are not finite from step {step} on: {_some(labels)}"
        yield Sighting(labels[0], step, len(labels), words)


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
        then = f", then {_some(labels)}" if labels else ""
        words = f"{last:.1%} of what it gives is zero, over {threshold:.0%} since step {step}{then}"
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
        words = f"its values have grown {factor:.3g} times, over {threshold:g} times since step {step}{more}"
        yield Sighting(_label(course, layer), step, factor, words)


def _weights(course: Course) -> list[WatchedParameter]:
    """Weights; biases and scales of norms live on another scale and may start at zero."""
    return [one for one in course.parameters if len(one.shape) > 1]


def _gradients(course: Course, is_wrong: Callable[[float], bool], words: str) -> Iterator[Sighting]:
    rows = []
    for one in _weights(course):
        start = _lasting(one.series.grad_norm, is_wrong)
        if start is not None:
            rows.append((one.series.step[start], one, one.series.grad_norm[-1] or 0.0))
    if rows:
        step = min(step for step, _, _ in rows)
        labels = [_label(course, one) for _, one, _ in rows]
        worst = min((norm for *_, norm in rows), key=lambda norm: (not is_wrong(norm), norm))
        yield Sighting(labels[0], step, worst, f"{words} since step {step}: {_some(labels)} ({worst:.2g})")


def _vanishing(course: Course, threshold: float) -> Iterator[Sighting]:
    return _gradients(course, lambda norm: norm < threshold, f"the gradient's norm is below {threshold:g}")


def _exploding_gradients(course: Course, threshold: float) -> Iterator[Sighting]:
    words = f"the gradient's norm is over {threshold:g}"
    return _gradients(course, lambda norm: threshold < norm < math.inf, words)


def _large_updates(course: Course, threshold: float) -> Iterator[Sighting]:
    rows = []
    for one in _weights(course):
        ratios = [ratio for ratio in one.series.update_ratio if ratio is not None]
        wrong = [
            i for i, ratio in enumerate(one.series.update_ratio) if ratio is not None and ratio > threshold
        ]
        # One large step, as the first of Adam may be, is no state.
        if len(ratios) >= _LASTING and len(wrong) >= max(_LASTING, len(ratios) / 4):
            rows.append((one.series.step[wrong[0]], statistics.median(ratios), one))
    if rows:
        step = min(step for step, _, _ in rows)
        labels = [_label(course, one) for *_, one in rows]
        worst = max(ratio for _, ratio, _ in rows)
        words = (
            f"a single step changes weights by more than {threshold:.0%} of their size, first at step {step}"
        )
        yield Sighting(labels[0], step, worst, f"{words}: {_some(labels)}")


def _small_updates(course: Course, threshold: float) -> Iterator[Sighting]:
    """Small all the time: at the end of a schedule they are meant to be."""
    rows = []
    for one in _weights(course):
        ratios = [ratio for ratio in one.series.update_ratio if ratio is not None]
        if len(ratios) >= _MIN_RECORDS and max(ratios) < threshold:
            rows.append((one, max(ratios)))
    if rows:
        labels = [_label(course, one) for one, _ in rows]
        worst = min(ratio for _, ratio in rows)
        words = f"no step changes these weights by {threshold:g} of their size: {_some(labels)}"
        yield Sighting(labels[0], rows[0][0].series.step[0], worst, words)


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
