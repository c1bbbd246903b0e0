"""Rules about gradients of weights, and the size of updates."""

import math
import statistics
from collections.abc import Callable, Iterator
from itertools import pairwise

from modelscope_cli.records import grads
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import percent, rounded
from modelscope_cli.records.training_facts import GRADIENT
from modelscope_cli.records.watch import WatchedParameter
from modelscope_cli.rules.training.layers import discriminator_wins, is_silent
from modelscope_cli.rules.training.rule_types import (
    LASTING,
    MIN_RECORDS,
    Case,
    Link,
    TrainingSighting,
    known,
    lasting,
    share_of_steps,
    training_rule,
)

_OFTEN = 0.25  # of the steps
_ALL_OF_IT = 0.99  # of an output is zero
_WHOLE = 1.0  # a change as large as the weight itself
SMALL = 1e-5  # share of a weight that a step changes
_NEARLY_ALL = 0.9  # of the weights
_TIMES = 10.0  # above which a change is told in times of the weight
_REPLACED = 5.0  # times a weight: what it was before hardly matters
_FEW, _NEXT = 2, 5  # weights; losses
_TINY, _GROWN = 0.01, 0.5  # norm of a row; a usual weight has about 1
_INFINITE_SLOPE = (
    "look in the loss for a sqrt, norm, log, acos or division at 0, where the derivative is infinite, and add "
    "a small eps inside; torch.autograd.set_detect_anomaly(True) names the line"
)
_IN_HALVES = "use torch.amp.GradScaler, which skips steps that overflow in float16"
_RESOLUTION = 1e-6  # share of a weight; smaller steps are lost in the rounding of float32
_ROUNDING = 1e-6  # of the loss, at any layer
_BY_WHAT = (
    "look at what the loss is computed from: a detached output, a wrong variable, targets of the wrong kind, "
    "or values whose sum is always the same"
)
_STATE = "start the cell from the state that its last call returned, not from zeros each time"
_SEEN = 1e-5  # share of a weight that a step changes; its sum over the steps shows in nine digits
_MOST = 1 << 20  # elements; of a larger weight only some rows may be used, and only some are compared
_HALVES = "bfloat16", "float16"
_RESTORED = 3  # times that the first weights are loaded
_STANDSTILL = 1e-2  # change of a weight over the whole run: ten usual steps of about 1e-3


@training_rule("MS703", "gradient-not-finite", ERROR, 0, Link.LAYERS)
def gradient_not_finite(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An optimizer receives NaN or infinite gradients.

    Measure: parameters whose gradient is not finite
    Source: IEEE 754: NaN passes through every sum, and into every weight
    Hint: fix the first value that was not finite; lower the learning rate if the loss rose before
    Why: one step with such a gradient makes the weights NaN permanently
    """
    birth = case.born(GRADIENT)
    if birth is not None:
        words = f"its gradient is not finite at step {birth.step}, although outputs and loss are finite"
        link, hint = case.link_of_break(GRADIENT), _INFINITE_SLOPE
        if any("float16" in model.dtypes for model in case.facts.models):
            hint = f"{_IN_HALVES}; {hint}"
        yield TrainingSighting(case.row_of(birth), birth.step, None, words, link=link, hint=hint)
        return
    by_step: dict[int, list[WatchedParameter]] = {}
    for one in case.course.parameters:
        norms = zip(one.series.step, one.series.grad_norm, strict=True)
        step = next((s for s, norm in norms if norm is not None and not math.isfinite(norm)), None)
        if step is not None:
            by_step.setdefault(step, []).append(one)
    if by_step:
        step = min(by_step)
        one, *others = by_step[step]
        words = f"its gradient is not finite at step {step}{case.beside(others)}"
        yield TrainingSighting(one, step, 1 + len(others), words, link=case.link_of_break(GRADIENT))


def _gradients(
    case: Case, is_wrong: Callable[[float], bool], words: str, sign: int
) -> Iterator[TrainingSighting]:
    """The first weight beyond the threshold; at the same step the one furthest off, upwards if `sign` is 1."""
    if not case.fails:
        return
    rows = []
    for one in case.weights():
        if not grads.is_judged(one.shape) or _is_never_reached(one):
            continue
        relative = _relative(case, one)
        start = lasting(relative, is_wrong)
        if start is not None:
            rows.append((one.series.step[start], -sign * (relative[-1] or 0.0), one))
    if rows:
        rows.sort(key=lambda row: row[:2])
        step, last, one = rows[0]
        text = f"its gradient norm is {rounded(abs(last))}x that at the model's output; {words} since step {step}"
        if not any(_relative(case, one)[one.series.step.index(step) :]):
            text = f"its gradient has been zero since step {step}"
        yield TrainingSighting(one, step, abs(last), text + case.followed(rows))


def _relative(case: Case, one: WatchedParameter) -> list[float | None]:
    """Return the norms of a weight's gradient divided by those at the model's output, or by 1."""
    layers = [layer for layer in case.course.layers if layer.model == one.model]
    last = max(layers, key=lambda layer: layer.order, default=None)
    at_output = dict(zip(last.series.step, last.series.grad_norm, strict=True)) if last is not None else {}
    return [
        None if norm is None else norm / (at_output.get(step) or 1.0)
        for step, norm in zip(one.series.step, one.series.grad_norm, strict=True)
    ]


@training_rule(
    "MS707",
    "vanishing-in-training",
    WARNING,
    grads.VANISHING,
    Link.LAYERS,
    measure=f"{grads.SCALE}, in all steps until the end",
    source=grads.VANISHING_SOURCE,
)
def vanishing(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Almost no gradient reaches a weight, and training fails.

    Hint: add residual connections or norms, look for dead or saturated activations after it, or freeze it
    Why: these weights do not learn, however long the run lasts
    """
    return _gradients(case, lambda norm: norm < threshold, f"below {threshold:g}", -1)


@training_rule(
    "MS708",
    "exploding-in-training",
    WARNING,
    grads.EXPLODING,
    Link.LAYERS,
    measure=f"{grads.SCALE}, in all steps until the end",
    source=grads.EXPLODING_SOURCE,
)
def exploding_gradients(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The gradient of a weight is very large, and training fails.

    Hint: use torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before the step, or a lower learning rate
    Why: a single step changes these weights far too much; the loss jumps or becomes NaN
    """
    return _gradients(case, lambda norm: threshold < norm < math.inf, f"over {threshold:g}", 1)


@training_rule("MS709", "large-updates", WARNING, 0.1, Link.STEP_SIZE)
def large_updates(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Steps change a weight by a large share of its norm, and training fails.

    The first weight with large changes; at the same step the one that changes most. Also where the training learns,
    if the first step overwrites nearly all weights and the loss rises.

    Measure: |change| / |weight| in a quarter of the steps; or 1 in any step; or in the first step 1 for nearly all
        weights, with a median of 5; of a weight near 0 at first, once its rows have a norm of 0.5
    Source: A. Karpathy, CS231n, Ratio of weights:updates: about 1e-3; 1e-1 is a hundred times that
    Hint: lower the learning rate, or warm it up
    Why: each step overwrites what earlier steps have learnt
    Error if: the last losses are no better than the first or than guessing
    """
    if not case.fails and not _overwrites(case):
        return
    jump, severity = case.rate_jump(), ERROR if case.is_no_better else None
    rise = f"the learning rate rises from {jump[1]:.2g} to {jump[2]:.2g} at step {jump[0]}" if jump else ""
    rows = [row for one in case.weights() if (row := _large(one, threshold)) is not None]
    if rows:
        rows.sort(key=lambda row: row[:2])
        step, change, one = rows[0]
        of_its_norm = f"{percent(-change)} of" if -change < _TIMES else f"{-change:,.0f} times"
        words = f"one step changes it by {of_its_norm} its norm (median;"
        words += f" limit {percent(threshold)}, exceeded from step {step})"
        if not case.fails:
            words = f"the first step changes it by {rounded(one.series.update_ratio[0] or 0.0)}x its norm,"
            words += f" and nearly all weights by more than {_WHOLE:g}x"
        if jump and jump[0] >= step:
            step = jump[0]
            words += f"; {rise}"
        yield TrainingSighting(one, step, -change, words + case.followed(rows), severity=severity)
    elif jump:
        yield TrainingSighting(None, jump[0], jump[2] / jump[1], rise, severity=severity)


def _overwrites(case: Case) -> bool:
    """Tell whether the first step replaces nearly all weights, and the losses after it are higher than before."""
    ratios = [one.series.update_ratio[0] or 0.0 for one in case.weights()]
    main = case.progress.main
    losses = [
        one.value[:_NEXT] for one in case.course.loss if main is not None and one.optimizer == main.optimizer
    ]
    if len(ratios) < _FEW or not losses or None in losses[0]:
        return False
    first, *after = known(losses[0])
    n = sum(_WHOLE < ratio < math.inf for ratio in ratios)
    are_most = n >= _NEARLY_ALL * len(ratios) and statistics.median(ratios) > _REPLACED
    return are_most and min(after, default=-math.inf) > max(first, 0.0)


def _large(one: WatchedParameter, threshold: float) -> tuple[int, float, WatchedParameter] | None:
    """Return the first step of large changes, minus their median, and the weight; None if they are rare."""
    series, facts = one.series, one.facts
    # Any step is a large share of next to nothing
    is_tiny = facts is not None and facts.start_rms * math.sqrt(math.prod(one.shape[1:])) < _TINY
    least = _GROWN * math.sqrt(one.shape[0]) * is_tiny
    columns = zip(series.step, series.update_ratio, series.grad_norm, series.weight_norm, strict=True)
    ratios = [
        (step, ratio)
        for step, ratio, norm, size in columns
        if ratio is not None and math.isfinite(ratio) and norm != 0  # else the layers after it died
        if (size or 0.0) >= least
    ]
    large = [(step, ratio) for step, ratio in ratios if ratio > threshold]
    share = share_of_steps([step for step, _ in ratios], [ratio > threshold for _, ratio in ratios])
    if not (share > _OFTEN and len(large) >= LASTING) and not any(ratio > _WHOLE for _, ratio in ratios):
        return None
    return large[0][0], -statistics.median(ratio for _, ratio in large), one


@training_rule("MS710", "small-updates", WARNING, SMALL, Link.STANDSTILL)
def small_updates(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """No step of the whole run changes a weight noticeably, or the loss does not depend on the output.

    Measure: |change| / |weight|, in every step; if training fails, also 1e-2 over all steps together
    Source: A. Karpathy, CS231n, Ratio of weights:updates: about 1e-3; 1e-5 is a hundredth of that
    Hint: raise the learning rate
    Why: the run ends with almost the weights it began with
    """
    for model in dict.fromkeys(one.model for one in case.weights() if one.optimizer):
        if case.progress.learns is not True and (words := _independent(case, model)) is not None:
            yield TrainingSighting(None, 0, None, words, case.called(model), link=Link.WIRING, hint=_BY_WHAT)
            return
    rows, are_most = still_weights(case, threshold)
    if rows and (case.fails or are_most):
        most, one = min(rows, key=lambda row: row[0])
        others = [other for _, other in rows if other is not one]
        words, hint = f"no step changes it by more than {most:.1g} of its norm; about 1e-3 is usual", None
        if max(known(_relative(case, one))) < grads.VANISHING:
            words, hint = f"almost no gradient reaches it: {words}", vanishing.hint
        yield TrainingSighting(one, one.series.step[0], most, words + case.beside(others), hint=hint)


def _independent(case: Case, model: str) -> str | None:
    """Return that the loss does not depend on the output of a model whose weights have gradients; None if it does.

    Then no layer has a gradient, which a penalty on the weights does not give it, or all have those of rounding.
    """
    weights = [one for one in case.weights() if one.model == model]
    layers = [one.series for one in case.course.layers if one.model == model]
    n = max((len(one.step) for one in layers), default=0)
    is_cut = any(one.facts is not None and one.facts.is_severed for one in weights)
    if n < MIN_RECORDS or is_cut or not any(norm for one in weights for norm in known(one.series.grad_norm)):
        return None
    norms = [norm for one in layers for norm in known(one.grad_norm)]
    if not norms:
        return f"the loss does not depend on the output of {model}: its weights have gradients from elsewhere"
    least = min((abs(loss) for one in case.course.loss for loss in known(one.value)), default=0.0)
    if 0 < max(norms) < _ROUNDING * min(least, 1.0):
        return f"the loss hardly depends on the output of {model}: its gradient there is at most {max(norms):.1g}"
    return None


def still_weights(case: Case, threshold: float) -> tuple[list[tuple[float, WatchedParameter]], bool]:
    """Return the weights that no step changes noticeably, with its largest change, and whether nearly all are."""
    rows = []
    weights = [one for one in case.weights() if _is_to_learn(one)] if not _has_learnt(case) else []
    for one in weights:
        ratios = known(one.series.update_ratio)
        is_small = len(ratios) >= MIN_RECORDS and (max(ratios) < threshold or _hardly_moves(case, one))
        is_reached = any(norm > 0 for norm in known(one.series.grad_norm))
        if is_small and is_reached and (case.fails or not _is_warming_up(case, one.optimizer)):
            rows.append((max(ratios), one))
    return rows, len(rows) >= max(_NEARLY_ALL * len(weights), 1)


@training_rule("MS747", "unchanged-by-steps", ERROR, 10, Link.BOOKKEEPING)
def unchanged(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A weight receives a gradient and is in an optimizer, but its values never change.

    Or its first values are loaded again and again, while the averages of the optimizer go on.

    Measure: recorded steps with a nonzero learning rate and gradient; or 3 reloads of the initial values
    Source: certain: its values are the same before and after each step, although such steps would change them
    Hint: check what writes to the weight: an optimizer that changes a copy, a hook, load_state_dict; keep weights
        in float32 if steps are lost in rounding
    Why: part of the model keeps its initial weights
    """
    restored = [one for one in case.weights() if _is_to_learn(one) and _is_put_back(one, threshold)]
    still = [one for one in case.weights() if _is_to_learn(one) and _stays(case, one, threshold)]
    for rows, reason in (
        (still, "no step changes it"),
        (restored, "its old values are written back after each step"),
    ):
        if rows:
            first, *others = rows
            is_half = any(dtype in model.dtypes for model in case.facts.models for dtype in _HALVES)
            why = " (in half precision steps below its resolution are lost in rounding)" if is_half else ""
            n = len(first.series.step)
            words = f"receives a nonzero gradient, but {reason}, in all {n} recorded steps{why}"
            yield TrainingSighting(first, 0, n, words + case.beside(others), case.made(first.optimizer))
    for one in () if still or restored else case.facts.optimizers:
        if one.restored >= _RESTORED:
            words = f"the weights from before the first step are loaded again {one.restored} times, and "
            words += f"{one.optimizer} keeps its averages of the lost steps"
            yield TrainingSighting(None, 0, one.restored, words, one.made)


def _stays(case: Case, one: WatchedParameter, threshold: float) -> bool:
    """Tell whether no step with a rate changes a weight, though the change would be measurable."""
    rates = case.rates(one.optimizer)
    rows = [
        (ratio, norm, weight, rates[step])
        for step, ratio, norm, weight in zip(
            one.series.step,
            one.series.update_ratio,
            one.series.grad_norm,
            one.series.weight_norm,
            strict=True,
        )
        if rates.get(step) and norm and weight
    ]
    if len(rows) < threshold or any(ratio != 0 for ratio, *_ in rows) or math.prod(one.shape) > _MOST:
        return False
    is_plain = one.optimizer.startswith("SGD")
    size = math.prod(one.shape) ** 0.5
    sizes = [rate * (norm if is_plain else max(norm, size)) / weight for _, norm, weight, rate in rows]
    return statistics.median(sizes) > _RESOLUTION


def _is_put_back(one: WatchedParameter, threshold: float) -> bool:
    """Tell whether a weight that every step changes has the same norm before each, to nine digits.
    The squared norm of a normalised weight is an integer, which is excluded."""
    norms, ratios = set(one.series.weight_norm), one.series.update_ratio
    if len(ratios) < threshold or len(norms) > 1 or not all(ratio and ratio > _SEEN for ratio in ratios):
        return False
    norm = norms.pop() or 0.0
    return math.isfinite(norm) and abs(norm**2 - round(norm**2)) > 1e-4 * norm**2


@training_rule("MS749", "gradient-is-always-zero", WARNING, 10, Link.LAYERS)
def always_zero(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The gradient of a weight is exactly zero in every step.

    Measure: recorded steps, in all of which every element of the gradient is zero
    Source: certain: the derivative of the loss with respect to the layer's output is zero
    Hint: after this layer, look for sign, round, argmax, a comparison, a factor of 0 such as a loss weight, or an
        activation that always outputs 0
    Why: the weight keeps its initial values, even if the loss falls
    """
    rows = [one for one in case.weights() if _is_to_learn(one) and _is_never_reached(one, threshold)]
    if rows:
        *others, last = rows
        hint = _STATE if all("weight_hh" in one.name for one in rows) else None
        n = len(last.series.step)
        words = f"its gradient is exactly zero in all {n} recorded steps{case.beside(others)}"
        # Another rule says why
        is_dead = is_silent(case) or any(discriminator_wins.judge(case, discriminator_wins.threshold))
        is_dead |= any(
            (known(layer.series.zero_fraction)[-1:] or [0.0])[0] > _ALL_OF_IT
            or (known(layer.series.saturated_fraction or ())[-1:] or [0.0])[0] > _OFTEN
            for layer in case.course.layers
            if layer.model == last.model
        )
        link = None if is_dead else Link.WIRING
        yield TrainingSighting(last, 0, n, words, case.called(last.model), link=link, hint=hint)


def _is_never_reached(one: WatchedParameter, threshold: float = MIN_RECORDS) -> bool:
    has_run = one.facts is None or one.facts.has_run
    norms = one.series.grad_norm
    return has_run and len(norms) >= threshold and all(norm == 0 for norm in norms)


def _has_learnt(case: Case) -> bool:
    """Tell whether the loss has fallen or was always low; accuracy above guessing may be chance."""
    main, chance = case.progress.main, case.progress.chance
    if case.progress.learns is not True or main is None:
        return False
    return chance is None or main.has_fallen is True or main.end < 0.5 * chance


def _hardly_moves(case: Case, one: WatchedParameter) -> bool:
    """Tell whether all steps of a failing training together, in one direction, would hardly change a weight."""
    ratios = [ratio or 0.0 for ratio in one.series.update_ratio]
    lengths = [after - step for step, after in pairwise((*one.series.step, case.course.steps))]
    moved = sum(ratio * length for ratio, length in zip(ratios, lengths, strict=True))
    return case.fails and moved < _STANDSTILL


def _is_to_learn(one: WatchedParameter) -> bool:
    """Tell whether a parameter can learn; if not, another rule reports why. A script may assign .grad itself."""
    has_gradient = one.facts is None or one.facts.has_gradient or bool(known(one.series.grad_norm))
    return has_gradient and (one.facts is None or one.facts.requires_grad)


def _is_warming_up(case: Case, label: str) -> bool:
    """Tell whether the learning rate of an optimizer begins low and is highest at the end of the run."""
    series_of_optimizer = (series for series in case.course.lr if series.optimizer == label)
    rates = [[rate or 0.0 for rate in series.value] for series in series_of_optimizer]
    return any(one[-1] >= 0.9 * max(one) > 0 and one[0] < 0.2 * one[-1] for one in rates if one)
