"""Rules about schedules, clipping or weight decay that make steps vanish."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from modelscope_cli.records.findings import WARNING
from modelscope_cli.records.naming import counted, percent, rounded, some
from modelscope_cli.records.training_facts import OptimizerFacts
from modelscope_cli.records.watch import CLIPPED, CUT, ParameterFacts, WatchedParameter
from modelscope_cli.rules.training.bookkeeping import size_of
from modelscope_cli.rules.training.progress import MIN_STEPS
from modelscope_cli.rules.training.rule_types import (
    FEW_STEPS,
    MIN_RECORDS,
    Case,
    Link,
    TrainingSighting,
    known,
    share_of_steps,
    training_rule,
)
from modelscope_cli.rules.training.updates import SMALL, still_weights

PLATEAU = "ReduceLROnPlateau"
BY_MODE = f"{PLATEAU}.step() takes a loss with mode='min', an accuracy with mode='max'; or raise its patience"
_GONE = 1.001e-2  # share of the highest learning rate below which hardly anything is learnt
_NOTHING = 1e-6  # the same below which nothing is: no schedule of a training ends there on purpose
_WASTED = 0.25  # of the steps, at a rate of exactly zero
_UNEVEN = 1.1  # times the least norm
_MOSTLY = 0.9  # of the cycles, or the steps
_RARE, _LOW = 10, 0.15  # steps for one of the schedule; share of the learning rate that is never reached
_SWINGS = 8  # lengths of a cosine, which rises again after each
_SHORTER = "make its warm-up shorter than the run; for OneCycleLR, lower total_steps, pct_start or div_factor"
_ABOVE_0 = "give it a learning rate above 0: check lr, and whatever changes it before the first step"
_UNSCALED = "call scaler.unscale_(optimizer) after backward(), and before clip_grad_norm_"
_FAR = 10.0  # times the largest gradient
_MANY_PASSES = 200  # backward passes
_MOST = 0.5  # of a model: one layer may be random by design, such as Fourier features
_GAP = 10  # of n such values the largest is 1/n of the interval from its end, on average
_ENOUGH_VALUES = 64  # of a weight whose standard deviation tells how it was drawn
_TAKEN = 1e-2  # of a weight by the decay of one step: ten times a usual step


@training_rule("MS719", "learning-rate-is-gone", WARNING, 0.5, Link.BOOKKEEPING)
def rate_is_gone(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The learning rate is practically zero for most of the run, or almost zero while the loss could still fall.

    Measure: share of the steps below 1 % of the highest learning rate
    Source: derived: 6 % of the steps in a cosine schedule that ends at zero, a third of them in He et al. 2016, who
        divide by ten twice; our choice: half
    Hint: let the rate fall more slowly; for a scheduler, call step() once per epoch, or bring its gamma closer to 1
    Why: most of the run changes nothing
    """
    rates: dict[str, list[tuple[tuple[int, ...], list[float]]]] = {}
    for series in case.course.lr:
        values = [value or 0.0 for value in series.value]
        rates.setdefault(series.optimizer, []).append((series.step, values))
    for label, groups in rates.items():
        peak = max((max(values) for _, values in groups), default=0.0)
        steps, values = max(groups, key=lambda one: max(one[1]))
        if len(values) < FEW_STEPS:
            continue
        gone = [value <= _GONE * peak for value in values]
        share = share_of_steps(steps, gone)
        place = case.made(label)
        if peak == 0:
            words = f"the learning rate of {label} is 0 in every step"
            yield TrainingSighting(None, 0, 0.0, words, place, hint=_ABOVE_0)
            continue
        idle = [str(number) for number, (_, own) in enumerate(groups) if not any(own)]
        if idle:
            words = f"the learning rate of group {some(idle)} of {label} is 0 in every step"
            words = f"{words}: its parameters never change"
            yield TrainingSighting(None, 0, 0.0, words, place, hint=_ABOVE_0)
        has_stopped = share_of_steps(steps, [value <= _NOTHING * peak for value in values]) > threshold
        if share > threshold and gone[-1] and (has_stopped or _has_more_to_learn(case)):
            since = steps[gone.index(True)]
            words = f"the learning rate of {label} falls from {peak:.2g} to {values[-1]:.2g},"
            words += f" and is below 1 % of its peak for {percent(share)} of the run"
            plateaus = {one.optimizer: one.made for one in case.facts.schedules if one.schedule == PLATEAU}
            hint = BY_MODE if label in plateaus else None
            yield TrainingSighting(None, since, share, words, plateaus.get(label, place), hint=hint)
        elif len(rates) == 1 and (zero := _zero_since(groups)) is not None:
            share = (case.course.steps - zero) / case.course.steps
            if share >= _WASTED and case.course.steps - zero >= MIN_STEPS:
                words = f"the learning rate of {label} has been 0 since step {zero}: {percent(share)} of all"
                words += " steps have no effect"
                yield TrainingSighting(None, zero, share, words, place)


def _zero_since(groups: Sequence[tuple[tuple[int, ...], list[float]]]) -> int | None:
    """Return the step from which on the rate of every group is exactly zero; None without one."""
    first = 0
    for steps, values in groups:
        last = max((at for at, value in enumerate(values) if value), default=-1)
        if last + 1 == len(values):
            return None
        first = max(first, steps[last + 1])
    return first


def _has_more_to_learn(case: Case) -> bool:
    main, chance = case.progress.main, case.progress.chance
    if main is None or chance is None:
        return case.progress.learns is not True
    return main.end > 0.5 * chance


@training_rule("MS717", "every-weight-is-frozen", WARNING, 0.5, Link.BOOKKEEPING)
def mostly_frozen(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Every weight has requires_grad=False; only norms or biases can learn.

    Measure: share of the parameters that are frozen
    Source: certain; even deliberate freezing leaves at least a head to train
    Hint: set requires_grad_(True) for the layers to train
    Why: scales and biases alone can hardly learn a new task
    """
    running = [one for one, facts in case.stated() if facts.has_run]
    free = [one for one, facts in case.stated() if facts.has_run and facts.requires_grad]
    frozen = [one for one, facts in case.stated() if facts.has_run and not facts.requires_grad]
    weights = [one for one in running if len(one.shape) > 1]
    if not weights or not frozen or case.course.steps < FEW_STEPS or case.progress.learns is True:
        return
    are_all_frozen = all(one in frozen for one in weights)
    if size_of(frozen) / max(size_of(running), 1) <= threshold or not (are_all_frozen and free):
        return
    words = f"{size_of(frozen):,} of {size_of(running):,} parameters have requires_grad=False,"
    words += f" including every weight: only {case.names(free)} can learn"
    yield TrainingSighting(None, 0, size_of(frozen) / size_of(running), words)


@training_rule("MS768", "frozen-at-random", WARNING, 0.4, Link.BOOKKEEPING)
def frozen_at_random(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Much of a model is frozen at random initial values.

    Measure: share of a model's weights, or of their values; half for one weight, or for two not drawn by torch
    Source: derived: fan-in and fan-out give the standard deviation of usual random weights; trained weights are
        more than four standard errors from it, and load_state_dict has set none of these
    Hint: load the pretrained weights before freezing, or train these layers too
    Why: the trained layers receive only random features of the input
    """
    models = {one.model for one, facts in case.stated() if facts.requires_grad and facts.has_changed}
    models -= {one.model for one in case.facts.models if one.makes_targets}  # of a frozen part
    for model in sorted(models) if case.course.steps >= MIN_STEPS else ():
        stated = [(one, facts) for one, facts in case.stated() if one.model == model and facts.has_run]
        weights = [(one, facts) for one, facts in stated if len(one.shape) > 1]
        frozen = [(one, facts) for one, facts in weights if not facts.requires_grad and not facts.has_changed]
        trained = [one.name for one, facts in stated if facts.has_changed]
        frozen = [pair for pair in frozen if not _has_adapter(pair[0], [one for one, _ in frozen], trained)]
        held = [one for one, facts in frozen if _is_as_drawn(one, facts)]
        size = size_of(held) / max(size_of([one for one, _ in weights]), 1)
        share = max(size, len(held) / max(len(weights), 1))
        # Torch draws weights from +-1/sqrt(fan-in), which trained ones exceed
        tops = [
            (facts.start_max * math.prod(one.shape[1:]) ** 0.5, math.prod(one.shape)) for one, facts in frozen
        ]
        is_proved = len(held) > 1 and all(1 - _GAP / n < top < 1 + 1e-6 for top, n in tops)
        if share > (threshold if len(held) > 2 or is_proved else _MOST) and len(held) == len(frozen):
            words = f"{len(held)} of {counted(len(weights), 'weight')} of {model} ({percent(size)} of the"
            words += f" values) have requires_grad=False and random initial values: {case.names(held)}"
            yield TrainingSighting(None, 0, share, words)


def _has_adapter(one: WatchedParameter, frozen: Sequence[WatchedParameter], trained: Sequence[str]) -> bool:
    """Tell whether the module around the layer of a frozen weight has no other, and trains weights beside it."""
    around = one.name.rpartition(".")[0].rpartition(".")[0]
    is_alone = sum(other.name.startswith(f"{around}.") for other in frozen) == 1
    return bool(around) and is_alone and any(name.startswith(f"{around}.") for name in trained)


def _is_as_drawn(one: WatchedParameter, facts: ParameterFacts) -> bool:
    """Tell whether the values were not loaded and are as large as those that an initialisation draws."""
    n, fan_in = math.prod(one.shape), math.prod(one.shape[1:])
    fan_out = one.shape[0] * math.prod(one.shape[2:])
    drawn = 1 / (3 * fan_in), 1 / fan_in, 2 / fan_in, 2 / fan_out, 2 / (fan_in + fan_out)
    error = 4 / math.sqrt(2 * n)  # of a standard deviation: at most that of a normal distribution
    is_sized = any(abs(facts.start_rms / math.sqrt(variance) - 1) < error for variance in drawn)
    return not facts.was_loaded and n >= _ENOUGH_VALUES and is_sized


@training_rule("MS758", "schedule-hardly-used", WARNING, 0.2, Link.BOOKKEEPING)
def schedule_unused(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A schedule is stepped too rarely to take effect, or a short cosine schedule so often that it keeps cycling.

    The latter in a training that does not provably learn, or is evaluated as often as a length has steps.

    Measure: steps of the schedule divided by those of its optimizer; or 8 cycles of a short cosine schedule
    Source: certain: the schedule counts its steps, and its length equals that of the run; our choice: 8 cycles
    Hint: call scheduler.step() after each optimizer.step(), or give it the number of epochs as its length
    Why: the learning rate hardly changes until the end of the run, or it falls and rises again and again
    """
    n_epochs = {len({*one.series.step}) for one in case.facts.criteria if not one.is_training}
    for one in case.facts.schedules:
        is_by_step = _SWINGS * one.total <= one.used >= _MOSTLY * one.steps
        is_meant = not case.may_fail() and one.total not in n_epochs
        if one.schedule == "CosineAnnealingLR" and is_by_step and not is_meant:
            words = f"{one.schedule} has a length of {counted(one.total, 'step')}, but was stepped"
            words += f" {counted(one.used, 'time')}: the learning rate falls and rises again"
            words += f" every {2 * one.total} steps"
            hint = "call scheduler.step() once per epoch, or make T_max the number of steps"
            yield TrainingSighting(None, 0, one.used / one.total, words, one.made, hint=hint)
        if any(event.kind == CUT for event in case.course.events):
            continue
        is_for_steps = one.total / 2 <= one.steps <= 2 * one.total
        if one.steps >= FEW_STEPS and is_for_steps and 1 <= one.used < threshold * one.steps:
            told = f"{counted(one.used, 'time')} in {counted(one.steps, 'step')} of {one.optimizer}"
            words = f"{one.schedule} has a length of {counted(one.total, 'step')},"
            words += f" but was stepped {told}: the learning rate hardly changes"
            yield TrainingSighting(None, 0, one.used / one.steps, words, one.made)
        rates = list(case.rates(one.optimizer).values())
        is_rare = MIN_STEPS <= _RARE * one.used <= one.steps
        is_low = one.base and rates and rates[0] < rates[-1] == max(rates) < _LOW * one.base
        is_still = case.fails and bool(still_weights(case, SMALL)[0])
        if rates and case.progress.learns is not True and one.steps >= 2 * MIN_STEPS:
            is_still |= rates[-1] < _GONE * (one.base or 0.0)
        if is_low and (is_rare or is_still):
            words = f"{one.schedule} was stepped {counted(one.used, 'time')} in {counted(one.steps, 'step')}"
            words += f" of {one.optimizer}: it is still warming up at the end,"
            words += f" at {rates[-1]:.2g} of {one.base:.2g}"
            shorter = None if is_rare else _SHORTER
            yield TrainingSighting(None, 0, one.used / max(one.steps, 1), words, one.made, hint=shorter)
            return


@training_rule("MS741", "clipped-to-nothing", WARNING, 0.01, Link.STEP_SIZE)
def clipped_to_nothing(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Gradients are clipped before they are unscaled, or so hard that no step changes a weight noticeably.

    Measure: relative variation of the gradient norm from step to step; or the median norm
        after clipping, at most 1e-4 of the norm before
    Source: derived: gradient norms vary from batch to batch, unless every one is clipped
    Hint: clip to a norm of about 1, and only after scaler.unscale_(optimizer) if there is a gradient scaler
    Why: every step has the size of the clipping threshold; gradients clipped before they are unscaled also shrink
        as the scale grows
    """
    early = {
        one.optimizer for one in case.facts.optimizers if one.shrunk >= max(_MOSTLY * one.cycles, FEW_STEPS)
    }
    if told := list(case.told(CLIPPED)):
        yield from (replace(one, hint=_UNSCALED if early else None) for one in told)
        return
    _, is_still = still_weights(case, SMALL)
    for label in dict.fromkeys(one.optimizer for one in case.weights()):
        own = [one for one in case.course.parameters if one.optimizer == label]
        is_early = label in early
        if not is_still and not is_early:
            continue
        norms = _norms_together(own)
        norms = norms[len(norms) // 2 :] if is_early else norms  # a scaler adjusts its scale first
        is_even = len(norms) >= MIN_RECORDS and 0 < max(norms) <= (1 + threshold) * min(norms)
        # Those of a single repeated batch do not differ even without clipping
        every = [found for one in own if (found := known(one.series.grad_norm))]
        if is_even and any(max(found) > _UNEVEN * min(found) for found in every):
            words = f"the gradients of {label} are clipped to a norm of {rounded(norms[-1])}"
            words += " in every recorded step, so no step changes a weight noticeably"
            if is_early:
                words = f"the gradients of {label} are clipped before the gradient scaler unscales them, "
                words += f"leaving a norm of {rounded(norms[-1])} at every step"
            hint = _UNSCALED if is_early else None
            yield TrainingSighting(None, 0, norms[-1], words, case.made(label), hint=hint)


def _norms_together(parameters: Sequence[WatchedParameter]) -> list[float]:
    """Return the norm of all gradients together, by step."""
    squares: dict[int, float] = {}
    for one in parameters:
        for step, norm in zip(one.series.step, one.series.grad_norm, strict=True):
            squares[step] = squares.get(step, 0.0) + (norm or 0.0) ** 2
    return [math.sqrt(square) for square in squares.values()]


@training_rule("MS744", "weights-decay-to-nothing", WARNING, 1, Link.STEP_SIZE)
def decays_to_nothing(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Weight decay shrinks the weights faster than they can learn, and training fails.

    Measure: weight decay, judged if its product with the highest learning rate is 0.01 or more
    Source: our choice: 1e-5 to 0.5 are usual; 0.01 of a weight is ten times a usual step, A. Karpathy, CS231n
    Hint: lower weight_decay: 1e-4 with SGD and 1e-2 with AdamW are usual
    Why: the weights go to zero, and with them activations and gradients
    """
    for one in case.facts.optimizers:
        own = [series for series in case.course.lr if series.optimizer == one.optimizer]
        rates = [rate for series in own for rate in series.value]
        taken = max(known(rates), default=0.0) * one.weight_decay
        if case.fails and one.weight_decay >= threshold and taken >= _TAKEN:
            words = f"the weight decay of {one.optimizer} is {one.weight_decay:g}: at this learning rate it removes"
            words += f" {percent(taken, 1)} of a weight in every step"
            yield TrainingSighting(None, 0, one.weight_decay, words, one.made)


@training_rule("MS766", "setting-stops-learning", WARNING, 1, Link.BOOKKEEPING)
def stopped_by_setting(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A setting of an optimizer makes its steps meaningless.

    Measure: momentum at which past gradients never decay; if there is no sign that the model learns, also eps
        relative to the gradients, beta1 and beta2
    Source: derived: the velocity is the sum of g momentum^k; Kingma and Ba 2015: a step is lr m / (sqrt(v) + eps),
        and theorem 4.1 needs beta1^2 < sqrt(beta2)
    Hint: leave out the argument: the defaults of torch.optim suit nearly every model
    Why: steps are far larger or smaller than the learning rate suggests, or follow old gradients
    """
    for one in case.facts.optimizers:
        for name, values, usual in one.unusual:
            effect = None
            if name == "momentum" and values[0] >= threshold:
                effect = "past gradients never decay, and each step is the sum of all of them"
            elif case.progress.learns is not True:
                effect = _effect(case, one, name, values)
            if effect is not None:
                told, hint = (", ".join(f"{value:g}" for value in several) for several in (values, usual))
                words = f"{name} of {one.optimizer} is {told}: {effect}"
                hint = f"use {name}={f'({hint})' if len(usual) > 1 else hint}"
                yield TrainingSighting(None, 0, values[0], words, one.made, hint=hint)
        if one.remade >= MIN_STEPS:
            words = f"{one.optimizer} is recreated before each step, so its gradient averages restart at zero"
            hint = "make the optimizer once, before the loop"
            yield TrainingSighting(None, 0, one.remade, words, one.made, hint=hint)


def _effect(case: Case, one: OptimizerFacts, name: str, values: Sequence[float]) -> str | None:
    """Return what an unusual setting does; None if it is harmless."""
    steps = case.course.steps
    longest = 1 / max(1 - values[0], 1e-12)
    if name in ("momentum", "betas") and MIN_STEPS <= steps <= longest:
        return f"each step averages {longest:,.0f} gradients, but the run has only {steps:,} steps"
    if name == "betas" and values[0] ** 2 >= math.sqrt(values[1]):
        return "beta1 squared is above the square root of beta2, so a step may be far too large"
    if name == "eps":
        own = [each for each in case.weights() if each.optimizer == one.optimizer]
        sizes = [
            norm / math.sqrt(math.prod(each.shape)) for each in own for norm in known(each.series.grad_norm)
        ]
        if (largest := max(sizes, default=math.inf)) * _FAR < values[0]:
            return f"the RMS gradient is at most {largest:.1g}, so eps shrinks every step"
    return None


@training_rule("MS769", "steps-are-rare", WARNING, 16, Link.BOOKKEEPING)
def rare_steps(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The optimizer steps only a few times, each after very many backward passes.

    Measure: backward passes per step, in a run with fewer than 20 steps and at least 200 backward passes
    Source: our choice: four times the usual gradient accumulation
    Hint: call optimizer.step() and zero_grad() in the loop over the batches, not in the loop over the epochs
    Why: with one step for a whole pass over the data, the weights hardly change
    """
    steps, n = case.course.steps, case.facts.backwards
    if 0 < steps < MIN_STEPS and n >= max(threshold * steps, _MANY_PASSES):
        words = f"{counted(steps, 'step')} in {n:,} backward passes: one in {n / steps:,.0f}"
        yield TrainingSighting(None, 0, n / steps, words)
