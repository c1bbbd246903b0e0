"""Rules about outputs of layers, and initial weights."""

import math
from collections.abc import Callable, Iterator

from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import counted, is_rectifier, percent, rounded
from modelscope_cli.records.training_facts import BETWEEN, INPUT, OUTPUT
from modelscope_cli.records.watch import WatchedLayer, WatchedParameter
from modelscope_cli.rules.training.rule_types import (
    FEW_STEPS,
    Case,
    Link,
    TrainingSighting,
    known,
    lasting,
    training_rule,
    zeros_since,
)

_ENTIRELY = 0.9999  # of the values
_HARDLY_EVER = 0.25  # of the values are zero; half of them for inputs around zero
_NEARLY_ALL, _EARLY = 0.9, 0.25  # of the channels, of the steps
_LOST = 5.0  # times the loss at first
_LAYERS_WITH_FAN = ("Linear", "Conv1d", "Conv2d", "Conv3d")


@training_rule("MS702", "output-not-finite", ERROR, 0, Link.LAYERS)
def output_not_finite(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A layer outputs NaN or infinite values.

    Measure: values that are not finite in one output
    Source: IEEE 754: NaN passes through every sum
    Hint: look for a division, a logarithm or an overflow in it, or lower the learning rate
    Why: NaN spreads to everything after the layer, and through the gradients to everything before it
    """
    spoilt = []
    for layer in case.course.layers:
        counts = zip(layer.series.step, layer.series.nan_count, layer.series.inf_count, strict=True)
        first = next(((step, nan + inf) for step, nan, inf in counts if nan + inf > threshold), None)
        if first is not None:
            spoilt.append((first[0], layer.order, layer, first[1]))
    since = min((row[0] for row in spoilt), default=math.inf)
    earliest, birth = case.born(), case.born(INPUT, OUTPUT, BETWEEN)
    if birth is not None and birth.step <= since:
        row = case.row_of(birth)
        later = case.beside([layer for _, _, layer, _ in spoilt if layer is not row], "then")
        is_here = birth.what == OUTPUT and row is not None
        where = f"here at step {birth.step}" if is_here else f"at step {birth.step}: {birth.words}"
        words = f"the first NaN or infinite values appear {where}{later}"
        place, link = case.called(birth.model), case.link_of_break(birth.what)
        yield TrainingSighting(row, birth.step, None, words, place, link=link)
    elif spoilt and (earliest is None or earliest.step >= since):
        step, _, layer, n = min(spoilt, key=lambda one: one[:2])
        later = case.beside([other for _, _, other, _ in spoilt if other is not layer], "then")
        words = f"the first NaN or infinite values appear here, {n} of them at step {step}{later}"
        place, link = case.called(layer.model), case.link_of_break(OUTPUT)
        yield TrainingSighting(layer, step, n, words, place, link=link)


@training_rule("MS778", "discriminator-wins", WARNING, 0.003, Link.LAYERS)
def discriminator_wins(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A discriminator tells real from generated samples without error, and the generator does not learn.

    Measure: loss of the discriminator at the end, divided by that over the first steps; judged if the gradients of
        the generator are exactly 0 until the end, or its loss is as close to 0, above 5, or 5x the initial one
    Source: Arjovsky and Bottou 2017, Towards Principled Methods for Training GANs, section 2; our choice: 0.003
    Hint: slow the discriminator down, by fewer steps or a lower rate, or add noise to its inputs; if it ends in a
        sigmoid, which has no gradient once saturated, use logits and BCEWithLogitsLoss, with targets of 1 for
        the generator
    Why: a discriminator that is always right gives the generator no gradient to learn from
    Error if: the gradients of the generator are exactly 0 until the end
    """
    courses = {one.optimizer: one for one in case.progress.losses} if case.progress.is_adversarial else {}
    fed = {one.model for one in case.facts.models if one.is_fed}
    owners = {one.optimizer: one.model for one in case.weights()}
    for label, won in courses.items():
        if owners.get(label) not in fed or not 0 <= won.end < threshold * won.start:
            continue
        for other, lost in courses.items():
            weights = [one for one in case.weights() if one.optimizer == other]
            if not weights or owners[other] in fed:
                continue
            zeros = [lasting(one.series.grad_norm, (0.0).__eq__) for one in weights]
            starts = [one.series.step[at] for one, at in zip(weights, zeros, strict=True) if at is not None]
            place = case.called(owners[label])
            words = f"the loss of {owners[label]} has gone from {won.start:.3g} to {won.end:.2g}"
            if len(starts) == len(weights):
                words += f", and every gradient of {owners[other]} is exactly 0 since step {max(starts)}"
                yield TrainingSighting(None, max(starts), won.end, words, place, severity=ERROR)
            elif lost.end > _LOST * min(abs(lost.start), 1.0) or 0 <= -lost.end < threshold * -lost.start:
                words += f", and that of {owners[other]} from {lost.start:.3g} to {lost.end:.3g}"
                yield TrainingSighting(None, None, won.end, words, place)


_DEAD_AT_FIRST = (
    "set the biases before it to 0 and initialise the weights with kaiming_normal_; or use nn.LeakyReLU"
)


@training_rule("MS705", "dying-units", WARNING, 0.9, Link.LAYERS)
def dead(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """From some step on, a ReLU outputs almost only zeros, or a layer with weights outputs only zeros.

    Measure: share of zeros in the output of a ReLU over at least the last four steps (99.99 % unless training
        fails); of a layer with weights, the whole output
    Source: a ReLU of a symmetric input is zero half of the time; our choice: nine tenths. Certain: a weight whose
        input is always zero has no gradient
    Hint: lower the learning rate, initialise with kaiming_normal_, add a norm, or use a leaky activation
    Why: a ReLU that outputs only zeros gets no gradient, so it rarely recovers
    Error if: over 99.99 % of an output, or all of an input that another model computes, is zero
    """
    yield from _fed_nothing(case)
    if silent := _lasting_zeros(case, is_rectifier, (threshold if case.fails else _ENTIRELY).__lt__):
        step, _, layer = silent[0]
        last = layer.series.zero_fraction[-1] or 0.0
        words = f"{percent(last, 1)} of its output is zero (limit {percent(threshold)}, exceeded from step {step})"
        severity = ERROR if last > _ENTIRELY else None
        hint = _DEAD_AT_FIRST if not step else None
        yield TrainingSighting(layer, step, last, words + case.followed(silent), severity=severity, hint=hint)
        return
    silent = [one for one in _lasting_zeros(case, _LAYERS_WITH_FAN.__contains__, (1.0).__eq__) if one[0]]
    if silent:
        step, _, layer = silent[0]
        words = f"all of its output is zero, for every sample, since step {step}{case.followed(silent)}"
        yield TrainingSighting(layer, step, 1.0, words, severity=ERROR)


def is_silent(case: Case) -> bool:
    """Tell whether a whole layer is dead, so that no gradient comes to those before it."""
    return any(one.severity == ERROR for one in dead.judge(case, dead.threshold))


def _lasting_zeros(
    case: Case, is_meant: Callable[[str], bool], is_wrong: Callable[[float], bool]
) -> list[tuple[int, int, WatchedLayer]]:
    """Return `(step since when, order, layer)` of layers whose share of zeros is wrong until the end."""
    silent = []
    for layer in case.course.layers:
        since = zeros_since(layer, is_wrong) if is_meant(layer.type) else None
        if since is not None and len(layer.series.step) >= FEW_STEPS:
            silent.append((since, layer.order, layer))
    return sorted(silent, key=lambda one: one[:2])


def _fed_nothing(case: Case) -> Iterator[TrainingSighting]:
    """A model whose input from another model, through an activation in the script, is all zero."""
    for one in case.facts.inputs:
        highs, lows = known(one.series.max), known(one.series.min)
        if one.is_computed and not one.type and len(highs) >= FEW_STEPS and not any((*highs, *lows)):
            words = f"every input value of {one.model}, which another model computes, is 0"
            hint = "look at what the script does between both models: a product with 0, or a dead activation"
            yield TrainingSighting(None, one.series.step[0], 1.0, words, severity=ERROR, hint=hint)
            return


@training_rule("MS731", "dying-channels", WARNING, 0.4, Link.LAYERS)
def dead_channels(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Many channels of a ReLU are zero for every sample.

    Measure: share of its channels that are zero in every step, if a quarter of the other values is zero too; in
        every step from some point on, if training fails or nine tenths are zero in three quarters of the run
    Source: our measurement, tests/bench/verdict: at most a third at the first step of healthy runs
    Hint: lower the learning rate, initialise with kaiming_normal_, add a norm, or use a leaky activation
    Why: most of the layer's capacity is unused
    """
    dying = []
    for layer in case.course.layers:
        shares = layer.series.dead_fraction
        if not is_rectifier(layer.type) or shares is None or len(layer.series.step) < FEW_STEPS:
            continue
        start = lasting(shares, lambda share: share > threshold)
        last = shares[-1]
        nearly = lasting(shares, _NEARLY_ALL.__lt__)
        is_early = nearly is not None and layer.series.step[nearly] <= _EARLY * case.course.steps
        # Channels also become zero in healthy runs once there is nothing more to learn.
        is_lost = case.fails or is_early or (start == 0 and not _is_decided(layer))
        if start is not None and is_lost and last is not None and last < _ENTIRELY:
            dying.append((layer.series.step[start], layer.order, layer, last))
    if dying:
        step, _, layer, last = max(dying, key=lambda one: one[3])
        others = [one for _, _, one, _ in dying if one is not layer]
        words = f"{percent(last)} of its channels have been zero for every sample since step {step}"
        words += case.beside(others)
        yield TrainingSighting(layer, step, last, words, link=Link.STANDSTILL if is_silent(case) else None)


def _is_decided(layer: WatchedLayer) -> bool:
    """Tell whether the other channels are initially hardly ever zero, as for similar inputs such as maxima.
    The sign of a channel is then that of the mean, and half of them are zero by chance."""
    series = layer.series
    dead, zero = (one[0] if one else None for one in (series.dead_fraction, series.zero_fraction))
    return dead is not None and zero is not None and zero - dead < _HARDLY_EVER * (1 - dead)


@training_rule("MS730", "saturated-in-training", WARNING, 0.5, Link.LAYERS)
def saturated(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The output of a tanh or sigmoid is saturated, and training fails.

    Measure: share of the output that is saturated until the end
    Source: Glorot and Bengio 2010, section 3: a saturated unit passes almost no gradient
    Hint: initialise with xavier_uniform_, add a norm before it, or use ReLU or GELU
    Why: the layers before it get almost no gradient and do not learn
    """
    if not case.may_fail():
        return
    rows = []
    for layer in _hidden(case):
        shares = layer.series.saturated_fraction
        start = lasting(shares or (), lambda share: share > threshold)
        if shares and start is not None:
            rows.append((layer.series.step[start], layer.order, layer, shares[-1] or 0.0))
    if rows:
        step, _, layer, last = min(rows, key=lambda one: one[:2])
        others = [one for _, _, one, _ in rows if one is not layer]
        words = f"{percent(last)} of its output has been saturated since step {step}{case.beside(others)}"
        yield TrainingSighting(layer, step, last, words)


@training_rule("MS740", "chain-of-sigmoids", WARNING, 3, Link.LAYERS)
def deep_sigmoids(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Several sigmoids follow each other, the gradient shrinks at each, and training fails.

    Measure: sigmoids in a row
    Source: the derivative of the sigmoid is 1/4 at most
    Hint: use ReLU or GELU, or a norm between the layers
    Why: the gradient is almost zero when it reaches the first layers
    """
    if not case.may_fail():
        return
    chain = [one for one in _hidden(case) if one.type in ("Sigmoid", "F.sigmoid")]
    if len(chain) < threshold:
        return
    first, last = chain[0], chain[-1]
    finite = [sorted(filter(math.isfinite, known(one.series.grad_norm))) for one in (first, last)]
    norms = [values[len(values) // 2] if values else None for values in finite]
    if None in norms or not norms[1]:
        return
    if norms[0] < norms[1] * 0.5 ** (len(chain) - 1):  # type: ignore[operator]
        words = f"{len(chain)} sigmoids in a row: the gradient shrinks from {norms[1]:.2g} at"
        words += f" {case.names([last])} to {norms[0]:.2g} here"
        yield TrainingSighting(first, first.series.step[0], norms[0], words)


def _hidden(case: Case) -> list[WatchedLayer]:
    """Return the layers but the last of each model, which may be saturated on purpose."""
    last = {layer.model: layer.order for layer in case.course.layers}
    return [layer for layer in case.course.layers if layer.order != last[layer.model]]


_CERTAIN = 10  # times the limit: the values explode, however short the run


@training_rule("MS706", "exploding-activations", WARNING, 100, Link.LAYERS)
def exploding(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The outputs of a layer keep growing, and training fails.

    Measure: growth until the end, relative to the initial value or 1, whichever is larger; in hidden layers the
        threshold is 10x if it is unknown whether training fails, and 100x if it learns
    Source: our measurement, tests/bench/verdict: 31x at most in healthy runs
    Hint: lower the learning rate, add a norm after the layer, or use weight decay
    Why: values that keep growing overflow in the end, and destabilise every later layer
    Error if: the last losses are no better than the first or than guessing
    """
    threshold *= 1 if case.fails else _CERTAIN ** (2 if case.progress.learns else 1)
    grown = []
    for layer in case.course.layers if case.fails else _hidden(case):
        sizes = [
            None if mean is None or std is None else math.hypot(mean, std)
            for mean, std in zip(layer.series.mean, layer.series.std, strict=True)
        ]
        first = next(filter(None, sizes), math.inf)
        least = max(first, 1.0)  # growth from next to nothing is not an explosion
        start = lasting(sizes, lambda size, limit=threshold * least: size > limit)  # type: ignore[misc]
        if start is not None:
            grown.append((layer.series.step[start], layer.order, layer, (sizes[-1] or 0.0) / first))
    if grown:
        step, _, layer, factor = min(grown, key=lambda one: one[:2])
        more = f"; also in {counted(len(grown) - 1, 'more layer')}" if len(grown) > 1 else ""
        words = f"its values have grown {_times(factor)}; more than {_times(threshold)} since step {step}"
        severity = ERROR if case.is_no_better else None
        yield TrainingSighting(layer, step, factor, words + more, severity=severity)


def _times(factor: float) -> str:
    return f"{factor:,.0f}x" if factor < 1e6 else f"{factor:.2g}x"


@training_rule("MS729", "weights-start-alike", ERROR, FEW_STEPS, Link.INITIALISATION)
def symmetric(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """All rows of a weight start equal and stay equal, so all its units compute the same value.

    Measure: steps after which no row differs from another
    Source: Goodfellow, Bengio, Courville 2016, section 8.4: the initial values need to break the symmetry
    Hint: initialise with kaiming_normal_ or xavier_uniform_; use zeros only for biases and the last layer of a
        residual branch
    Why: units that compute the same value get the same gradient, so the whole layer is worth one unit
    """
    if case.course.steps < threshold:
        return
    alike = [
        one
        for one in case.weights()
        if one.facts is not None
        and one.facts.was_alike
        and (one.facts.is_alike or one.facts.start_rms > 0)
        and one.facts.requires_grad
        and one.facts.has_gradient
        and one.shape[0] > 1
        and _type_of(case, one) in _LAYERS_WITH_FAN
    ]
    if alike:
        first, *others = alike
        assert first.facts is not None
        size = first.facts.start_rms
        words_at_first = f"all its rows are the same (rms {size:.2g})" if size else "every value of it is 0"
        still = f", and still identical after {counted(case.course.steps, 'step')}"
        words = f"{words_at_first} at first{still if first.facts.is_alike else ''}"
        yield TrainingSighting(first, 0, size, words + case.beside(others))


@training_rule("MS739", "weights-start-huge", WARNING, 10, Link.INITIALISATION)
def starts_huge(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The initial values of a weight are far too large, and training fails.

    Measure: root mean square of the initial values, times sqrt(fan-in)
    Source: He et al. 2015: sqrt(2) keeps the scale of a signal after ReLUs; our choice: seven times that
    Hint: initialise with kaiming_normal_ or xavier_uniform_
    Why: activations saturate or explode, and the first steps are spent undoing the initialisation
    """
    if not case.fails:
        return
    huge = []
    for one in case.weights():
        if one.facts is None or _type_of(case, one) not in _LAYERS_WITH_FAN:
            continue
        gain = one.facts.start_rms * math.sqrt(math.prod(one.shape[1:]))
        if gain > threshold:
            huge.append((gain, one))
    if huge:
        gain, one = huge[0]
        words = (
            f"the rms of its initial values is {rounded(gain)} / sqrt(fan-in); 1 to 1.4 keeps the scale of a "
            "signal" + case.beside([other for _, other in huge[1:]])
        )
        yield TrainingSighting(one, 0, gain, words)


def _type_of(case: Case, parameter: WatchedParameter) -> str:
    """Return the class of the layer of a parameter; empty if it did not run."""
    owner = parameter.name.rpartition(".")[0]
    types = (one.type for one in case.course.layers if (one.model, one.name) == (parameter.model, owner))
    return next(types, "")
