"""Compare a training with a reference run, in the order from cause to symptom. Standard library only.

Two runs with one seed are equal bit by bit until something differs; with two seeds they never are. A series
therefore counts as different only if it leaves the noise of both runs and does not return.
"""

import difflib
import math
import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from modelscope_cli.records.naming import label, percent, some
from modelscope_cli.records.training_facts import Comparison, Deviation
from modelscope_cli.records.watch import (
    ACTIVE,
    BROADCAST,
    LEAKS,
    REPEATS,
    WRONG_SIGN,
    LayerSeries,
    Series,
    WatchedCriterion,
    WatchedLayer,
    WatchedParameter,
    WatchRecord,
    labelling,
)

_LINKS = (
    "arguments", "model", "mode", "optimizer", "criterion", "input", "parameter", "loss", "update", "layer",
)  # fmt: skip
_OUTCOMES = ("loss", "update", "layer")
_EVENTS = {  # what is certain once it was seen, and its link
    REPEATS: ("input", "random numbers of the workers", "repeat"),
    ACTIVE: ("mode", "validation", "dropout by function is active"),
    LEAKS: ("model", "outputs", "depend on other samples or on the target"),
    BROADCAST: ("criterion", "shapes", "broadcast by hand"),
    WRONG_SIGN: ("criterion", "sign", "the wrong way round"),
}
_EQUAL = 1e-6  # relative: precision of a float32 loss
_BEGIN = 1e-4  # the same for statistics of the first step
_SIGMAS = 6.0
_SHARE = 0.1  # of the larger value: smaller differences are ignored
_STAYS = 3  # records in a row
_MOST = 3  # deviations of one link; the others are counted
# Layers that draw random numbers: one more draw elsewhere in the script changes them and all layers after them.
_RANDOM = ("Dropout", "AlphaDropout", "FeatureAlphaDropout", "DropPath", "StochasticDepth", "F.dropout")

Key = tuple[str, str]  # link of the chain, name


def compare_with(run: WatchRecord, good: WatchRecord, name: str) -> Comparison:
    """Compare a run with a reference run.

    Args:
        name: of the reference run, as typed.
    """
    is_alike = _begins_alike(run, good)
    found = [*_typed_and_called(run, good), *(_first_outputs(run, good) if is_alike else ())]
    ours, theirs = _stated(run), _stated(good)
    for key, value in ours.items():
        if value != theirs.get(key, value):
            found.append(Deviation(*key, None, value, theirs[key]))
    curves = _curves(good, is_alike)
    for key, curve in _curves(run, is_alike).items():
        if key in curves and (differs := curve.leaves(curves[key])) is not None:
            step, here, there = differs
            found.append(Deviation(*key, step, here, there))
    return Comparison(name, _equal_steps(run, good), tuple(_shortened(sorted(found, key=_place_of))))


def _place_of(one: Deviation) -> tuple[int, float, int]:
    """Return the place in the list: what was given or stated by its link, what came of it by its step."""
    link, step = _LINKS.index(one.kind), -1 if one.step is None else one.step
    return (_LINKS.index("loss"), step, link) if one.kind in _OUTCOMES else (link, step, link)


def _shortened(found: Sequence[Deviation]) -> Iterator[Deviation]:
    """Yield the first few of each link, and one that counts the others."""
    for link in dict.fromkeys(one.kind for one in found):
        of_link = [one for one in found if one.kind == link]
        rest = of_link[_MOST:] if len(of_link) > _MOST + 1 else []
        yield from of_link[: len(of_link) - len(rest)]
        if rest:
            yield Deviation(link, some(one.where for one in rest), rest[0].step, "differ too", "")


def _equal_steps(run: WatchRecord, good: WatchRecord) -> int:
    """Return the number of equal losses from the first step on, of the optimizer that stepped first."""
    if not run.loss or not good.loss:
        return 0
    ours, theirs = run.loss[0], good.loss[0]
    there = dict(zip(theirs.step, theirs.value, strict=True))
    for step, value in zip(ours.step, ours.value, strict=True):
        if step not in there or not _is_close(value, there[step]):
            return step
    return ours.step[-1] + 1 if ours.step else 0


def _is_close(a: float | None, b: float | None, relative: float = _EQUAL) -> bool:
    if a is None or b is None:
        return a is b
    return math.isclose(a, b, rel_tol=relative, abs_tol=1e-9) or (math.isnan(a) and math.isnan(b))


# Lists: what was typed, and which layers run.


def _typed_and_called(run: WatchRecord, good: WatchRecord) -> Iterator[Deviation]:
    parts = _unequal(_own_arguments(run), _own_arguments(good))
    if parts:
        here, there = (
            shlex.join(word for part in side for word in part) for side in zip(*parts, strict=True)
        )
        yield Deviation("arguments", "", None, here or "none", there or "none")
    for ours, theirs in _unequal(_calls(run), _calls(good)):
        here, there = (some(calls) if calls else "not called" for calls in (ours, theirs))
        yield Deviation("model", "calls", None, here, there)


def _unequal(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Return the ranges in which two lists differ."""
    matcher = difflib.SequenceMatcher(None, ours, theirs, autojunk=False)
    return [(ours[a:b], theirs[c:d]) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal"]


def _own_arguments(record: WatchRecord) -> list[str]:
    words = [word for word in record.run.argv if word]
    names = [PurePath(word).name for word in words]
    return words[names.index(record.run.model.name) + 1 :] if record.run.model.name in names else []


def _calls(record: WatchRecord) -> list[str]:
    return [f"{label(one.name or one.model, one.call)} ({one.type})" for one in record.layers]


def _begins_alike(run: WatchRecord, good: WatchRecord) -> bool:
    """Tell whether inputs and weights are equal at first, as with one seed; then outputs must be, too."""
    inputs = {(one.model, one.name): one.series for one in good.facts.inputs}
    weights = {(one.model, one.name): one.series for one in good.parameters}
    trained = [x for x in run.parameters if x.series.step]
    return (
        bool(run.facts.inputs)
        and all(
            _begins_like(x.series, inputs.get((x.model, x.name)), "mean", "std") for x in run.facts.inputs
        )
        and all(_begins_like(x.series, weights.get((x.model, x.name)), "weight_norm") for x in trained)
    )


def _first_outputs(run: WatchRecord, good: WatchRecord) -> Iterator[Deviation]:
    """Yield the first output that differs although inputs and weights do not; without one, the first loss."""
    name_of = labelling(run.layers, run.parameters)
    there = {_call_of(one): one.series for one in good.layers}
    for one in run.layers:
        other = there.get(_call_of(one))
        if other is None or _begins_like(one.series, other, "mean", "std"):
            continue
        if not one.type.startswith(_RANDOM):
            where = f"{name_of(one)}, first output of equal inputs and weights"
            words = (f"mean {_written(x.mean[0])}, std {_written(x.std[0])}" for x in (one.series, other))
            yield Deviation("model", where, one.series.step[0], *words)
        return
    for a, b in zip(run.loss, good.loss, strict=False):
        if a.step and b.step and not _is_close(a.value[0], b.value[0], _BEGIN):
            where = "first loss of equal outputs: the targets or the loss differ"
            yield Deviation("criterion", where, a.step[0], _written(a.value[0]), _written(b.value[0]))


def _call_of(one: WatchedLayer) -> tuple[str, str, int]:
    return one.model, one.name, one.call


def _begins_like(one: Any, other: Any, *fields: str) -> bool:
    if other is None or one.step[:1] != other.step[:1]:
        return False
    return not one.step or all(
        _is_close(getattr(one, field)[0], getattr(other, field)[0], _BEGIN) for field in fields
    )


# What holds over a whole run, in words.


def _stated(record: WatchRecord) -> dict[Key, str]:
    facts, versions = record.facts, record.run.versions
    stated: dict[Key, str] = {
        **{("arguments", f"version of {name}"): versions.get(name, "") for name in ("torch", "python")},
        ("arguments", "device"): record.run.device,
        ("arguments", "processes"): str(record.ranks),
        ("optimizer", ""): some(one.optimizer for one in facts.optimizers) or "none",
    }
    if record.steps:
        stated["optimizer", "backward passes a step"] = f"{round(2 * facts.backwards / record.steps) / 2:g}"
    kinds = {event.kind for event in record.events}
    for kind, (link, where, detail) in _EVENTS.items():
        stated[link, where] = detail if kind in kinds else "as usual"
    for model in facts.models:
        stated["mode", model.model] = (
            "trained in evaluation mode" if model.steps_in_evaluation else "as usual"
        )
        if sum(model.evaluated):
            stated["mode", f"{model.model}, validated"] = (
                f"in {'training' if model.evaluated[0] else 'evaluation'} mode"
            )
    for one in facts.optimizers:
        prefix = f"{one.optimizer}, "
        stated["optimizer", prefix + "tensors held"] = str(one.held)
        stated["optimizer", prefix + "tensors of models that never ran"] = str(one.strangers)
        stated["optimizer", prefix + "weight decay"] = f"{one.weight_decay:.6g}"
        stated["optimizer", prefix + "direction"] = "maximizes" if one.maximizes else "minimizes"
        for detail, n in (
            ("steps with gradients of the step before", one.uncleared),
            ("steps with gradients cleared after the backward pass", one.emptied),
            ("steps with scaled gradients", one.scaled),
        ):
            stated["optimizer", prefix + detail] = percent(round(2 * n / max(one.cycles, 1)) / 2)
    for is_training, detail in ((True, "training"), (False, "evaluation")):
        criteria = [one for one in facts.criteria if one.is_training is is_training]
        stated["criterion", f"of {detail}"] = some(sorted({one.name for one in criteria})) or "none"
        for criterion in criteria:
            stated |= _stated_of(criterion)
    for watched_input in facts.inputs:
        name = f"input of {watched_input.name}" if watched_input.type else watched_input.name
        stated["input", f"{name}, shape"] = "x".join(map(str, watched_input.shape))
        stated["input", f"{name}, dtype"] = watched_input.dtype
        if watched_input.series.is_alike:
            are_alike = all(watched_input.series.is_alike)
            stated["input", f"{name}, samples of a batch"] = "all the same" if are_alike else "differ"
    for parameter in record.parameters:
        stated["model", f"shape of {parameter.name}"] = "x".join(map(str, parameter.shape))
        stated["parameter", parameter.name] = _state_of(parameter)
    return stated


def _stated_of(one: WatchedCriterion) -> dict[Key, str]:
    are_probabilities = bool(one.series.step) and all(one.series.is_probability)
    words = {
        "input from": one.made_by or "another layer",
        "input": "probabilities" if are_probabilities else "other numbers",
        "classes": "none" if one.classes is None else str(one.classes),
        "shapes of input and target": "broadcast" if one.shapes else "alike",
        "reduction": "sum" if one.is_summed else "mean or other",
    }
    return {("criterion", f"{one.name}, {what}"): value for what, value in words.items()}


def _state_of(one: WatchedParameter) -> str:
    if one.facts is None:
        return "trained" if one.optimizer else "in no optimizer"
    if not one.facts.requires_grad:
        return "frozen"
    if not one.facts.has_gradient:
        return "without a gradient"
    if not one.optimizer:
        return "in no optimizer"
    return "changed" if one.facts.has_changed else "never changed"


# What is measured at every recorded step.


@dataclass(frozen=True, slots=True)
class _Curve:
    """A series over steps."""

    step: tuple[int, ...]
    values: Series
    scale: float = 0.0  # differences are relative to this, or to the values themselves
    # Whether logarithms are compared, as for norms and ratios; factors below 2 are ignored
    is_factor: bool = False
    is_exact: bool = False  # whether it has no noise

    def leaves(self, other: "_Curve") -> tuple[int, str, str] | None:
        """Return the first common step from which on two curves stay apart, and their values there."""
        there = dict(zip(other.step, other.values, strict=True))
        pairs = [
            (step, a, b)
            for step, a in zip(self.step, self.values, strict=True)
            if a is not None and (b := there.get(step)) is not None and math.isfinite(b)
        ]
        noise = max((_noise([self._scaled(pair[side]) for pair in pairs]) for side in (1, 2)), default=0.0)
        wrong = [self._are_apart(a, b, noise) for _, a, b in pairs]
        for n, (step, a, b) in enumerate(pairs):
            stays = wrong[n : n + (1 if self.is_exact else _STAYS)]
            if all(stays) and (self.is_exact or len(stays) == min(_STAYS, len(pairs))):
                return step, _written(a), _written(b)
        return None

    def _are_apart(self, a: float, b: float, noise: float) -> bool:
        if self.is_exact or not math.isfinite(a):
            return not _is_close(a, b)
        least = math.log(2) if self.is_factor else _SHARE * max(abs(a), abs(b), self.scale)
        return abs(self._scaled(a) - self._scaled(b)) > max(_SIGMAS * noise, least)

    def _scaled(self, value: float) -> float:
        return math.log(max(value, 1e-30)) if self.is_factor and math.isfinite(value) else value


def _noise(values: Sequence[float]) -> float:
    """Return the standard deviation of one value, from the differences of neighbours."""
    gaps = [abs(b - a) for a, b in pairwise(values) if math.isfinite(a) and math.isfinite(b)]
    return 1.4826 * statistics.median(gaps) / math.sqrt(2) if gaps else 0.0


def _written(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _curves(record: WatchRecord, is_alike: bool) -> Mapping[Key, _Curve]:
    """Return the curves of a run.

    Args:
        is_alike: whether it began like the other; otherwise only large differences between layers count.
    """
    curves: dict[Key, _Curve] = {}
    for rate in record.lr:
        name = f"{rate.optimizer}, learning rate" + (f" of group {rate.group}" if rate.group else "")
        curves["optimizer", name] = _Curve(rate.step, rate.value, is_exact=True)
    for one in record.facts.criteria:
        series = one.series
        curves["criterion", f"{one.name}, share of the commonest label"] = _Curve(
            series.step, series.commonest_label
        )
        curves["criterion", f"{one.name}, variance of the targets"] = _Curve(
            series.step, series.target_variance
        )
    for watched_input in record.facts.inputs:
        name = f"input of {watched_input.name}" if watched_input.type else watched_input.name
        scale = _largest(watched_input.series.std)
        for field in ("mean", "std", "min", "max"):
            values = getattr(watched_input.series, field)
            curves["input", f"{name}, {field}"] = _Curve(watched_input.series.step, values, scale)
    for loss in record.loss:
        curves["loss", loss.optimizer if len(record.loss) > 1 else ""] = _Curve(loss.step, loss.value)
    for parameter in record.parameters:
        if parameter.facts is not None and len(parameter.shape) > 1:
            size = parameter.facts.start_rms
            curves["parameter", f"{parameter.name}, size at the start"] = _Curve(
                (0,), (size,), is_factor=True
            )
        if len(parameter.shape) > 1:
            for field, what in (("grad_norm", "gradient"), ("update_ratio", "size of the steps")):
                curve = _Curve(parameter.series.step, getattr(parameter.series, field), is_factor=True)
                curves["update", f"{parameter.name}, {what}"] = curve
    name_of = labelling(record.layers, record.parameters)
    for layer in record.layers:
        curves |= {
            ("layer", f"{name_of(layer)}, {what}"): one for what, one in _of_layer(layer.series, is_alike)
        }
    return curves


def _of_layer(series: LayerSeries, is_alike: bool) -> Iterator[tuple[str, _Curve]]:
    """Yield the curves of a layer; with another seed only a factor of two, or a third more zeros, counts."""
    yield "std", _Curve(series.step, series.std, is_factor=not is_alike)
    yield "zeros", _Curve(series.step, series.zero_fraction, scale=1.0 if is_alike else 3.0)
    if is_alike:
        yield "mean", _Curve(series.step, series.mean, _largest(series.std))


def _largest(values: Series) -> float:
    return max((abs(value) for value in values if value is not None), default=0.0)
