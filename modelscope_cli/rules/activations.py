"""MS2xx: activations."""

import math
from collections.abc import Collection, Iterator
from itertools import groupby, pairwise
from operator import itemgetter

from modelscope_cli.records.check_evidence import Evidence, NormInput
from modelscope_cli.records.findings import ERROR, NO_NORM, WARNING
from modelscope_cli.records.naming import RECTIFIERS, counted, is_rectifier, label_of, percent, rounded, some
from modelscope_cli.records.stats import LARGE_SCORES, ActivationStats
from modelscope_cli.rules.rule import Sighting, rule

_WEIGHTED = ("Conv", "Linear")
_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm")
ENOUGH_VALUES, ENOUGH_IMAGES = 1000, 100
_SOME_VALUES = 10  # of a channel, from which it is odd that all are zero
NO_RECTIFIER = "none of these layers is a ReLU (F.relu is a function, not a layer)"
MOST_DEAD = 0.5  # fraction of the channels of a layer
FORWARD, _INPUTS = frozenset({"forward"}), frozenset({"inputs"})


def _rows(evidence: Evidence, *types: str) -> list[ActivationStats]:
    assert evidence.settled is not None
    return [row for row in evidence.settled.activations if row.type.startswith(types) and row.std is not None]


_OWN_NORMS = ("LayerNorm", "GroupNorm", "RMSNorm")  # whose statistics are those of one image


def _may_have_batch_norm(evidence: Evidence) -> bool:
    """Tell whether a layer may be a batch norm, of any library; without one, rules about them do not apply."""
    is_known = evidence.batch_norms or any("running_" in one.name for one in evidence.tensors)
    if is_known or evidence.forward is None or _unseen(evidence, 0):
        return True
    types = (call.type.lower() for call in evidence.forward.flow if not call.type.startswith(_OWN_NORMS))
    return any("norm" in kind or "bn" in kind for kind in types)


def _no_drift_to_judge(evidence: Evidence, threshold: float) -> str | None:
    if not _may_have_batch_norm(evidence):
        return NO_NORM
    if not evidence.is_real:
        return "noise cannot test the running statistics: give images"
    return unused_statistics(evidence)


def unused_statistics(evidence: Evidence) -> str | None:
    """Return why running statistics cannot be judged, if all of them are the initial ones."""
    return "the batch norms have not seen a batch yet" if evidence.is_fresh else None


def _unseen(evidence: Evidence, threshold: float) -> str | None:
    """Return why rules about layers cannot be judged, if none was seen running, as in an exported program."""
    assert evidence.forward is not None
    types = (*_WEIGHTED, *_NORMS, *RECTIFIERS, "Sigmoid", "Tanh")
    is_seen = any(call.name or call.type.startswith(types) for call in evidence.forward.flow)
    return None if is_seen else "no layer inside the model could be observed"


def _too_few_values(evidence: Evidence, threshold: float) -> str | None:
    rows = _rectifiers(evidence)
    is_told = any(enough or (row.zero_fraction == 1 and row.numel >= ENOUGH_VALUES) for row, enough in rows)
    too_few = f"no ReLU channel has {ENOUGH_VALUES} values: give {ENOUGH_IMAGES} images"
    reason = None if is_told else too_few if rows else NO_RECTIFIER
    return _unseen(evidence, threshold) or reason


def _too_few_images(evidence: Evidence, threshold: float) -> str | None:
    """Return why MS202 cannot be judged: also if a layer is mostly zero, in too few images to call it dead."""
    assert evidence.forward is not None
    images = evidence.forward.images
    for row, enough in _rectifiers(evidence):
        values = row.numel // (row.channels or 1)
        if is_mostly_dead(row, threshold) and values >= _SOME_VALUES and not enough:
            if any(_dead_channels.judge(evidence, threshold)):
                return None
            zero = f"{row.dead_channels} of {row.channels} channels of {label_of(row)} are zero"
            needed = min(ENOUGH_IMAGES, math.ceil(ENOUGH_VALUES * images / values))
            return f"{zero} in {counted(images, 'image')}: give {needed} to tell whether they are dead"
    return _too_few_values(evidence, threshold)


@rule("MS201", "non-finite-activations", ERROR, 0, needs=FORWARD, yields_to=("MS101", "MS102", "MS103"))
def _non_finite(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A layer turns finite inputs into NaN or infinite values; layers that only pass them on are counted.

    Measure: calls whose output is not finite
    Source: IEEE 754: NaN passes through every sum; SageMaker Debugger, ExplodingTensor: one is enough
    Hint: modelscope stats MODEL --layer LAYER   shows its range; look for log, sqrt, x / 0, float16
    Why: NaN spreads to everything after it; look at the first layer that produces it
    """
    forward = evidence.forward
    assert forward is not None
    if not forward.is_input_finite:
        n_broken = sum(not call.is_finite for call in forward.flow)
        yield Sighting(None, n_broken, "the input itself has NaN or infinite values")
    n_calls = len(forward.flow)
    for i, call in enumerate(forward.flow):
        end = next((n for n in range(i + 1, n_calls) if forward.flow[n].depth <= call.depth), n_calls)
        if not call.produces or any(inner.produces for inner in forward.flow[i + 1 : end]):
            continue  # the innermost calls that produce them are named
        later = [other for other in forward.flow if other.order > call.order and not other.is_finite]
        if 1 + len(later) <= threshold:
            continue
        names = some(map(label_of, later), 2)
        passed = f"; passed on to {counted(len(later), 'call')} after it ({names})" if later else ""
        words = f"outputs NaN or infinite values from finite inputs{passed}"
        yield Sighting(label_of(call) if call.name else None, 1 + len(later), words)


def _rectifiers(evidence: Evidence) -> list[tuple[ActivationStats, bool]]:
    """Return the ReLUs, each with whether its channels have enough values to be judged."""
    assert evidence.forward is not None
    rows = (row for row in _rows(evidence, *RECTIFIERS) if is_rectifier(row.type))
    return [(row, is_enough(row, evidence.forward.images)) for row in rows]


def is_enough(row: ActivationStats, images: int) -> bool:
    """Tell whether every channel of a row has enough values to judge it dead."""
    is_long = row.numel >= ENOUGH_VALUES * (row.channels or 1)
    return bool(row.channels) and (is_long or images >= ENOUGH_IMAGES)


def _dead_share(row: ActivationStats) -> float:
    return (row.dead_channels or 0) / (row.channels or 1)


def is_mostly_dead(row: ActivationStats, threshold: float = MOST_DEAD) -> bool:
    """Tell whether more than this fraction of the channels is dead; tables mark such a row."""
    return _dead_share(row) > threshold


@rule("MS202", "dead-channels", WARNING, MOST_DEAD, most=1, needs=FORWARD, excuse=_too_few_images)
def _dead_channels(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Most channels of a ReLU are zero at every position of every image.

    Measure: share of dead channels, once there are 1000 values per channel or 100 images
    Source: SageMaker Debugger, DeadRelu: threshold_layer = 50 %
    Hint: lower the learning rate, check the biases before it, use a leaky activation, or re-initialise zero weights
    Why: a channel that never fires gets no gradient, so it never recovers, and its parameters are wasted
    Error if: the whole output of a layer is zero
    """
    for row, enough in _rectifiers(evidence):
        if (
            enough
            and is_mostly_dead(row, threshold)
            and (row.zero_fraction != 1 or row.numel < ENOUGH_VALUES)
        ):
            message = f"{row.dead_channels} of {row.channels} channels are always zero"
            yield Sighting(label_of(row), _dead_share(row), message)
    for cause, run in evidence.silent_runs():
        names = [label_of(row) for row in run if is_rectifier(row.type) and row.numel >= ENOUGH_VALUES]
        if names and threshold < 1:
            more = f"; so is that of {counted(len(names) - 1, 'ReLU')} after it" if names[1:] else ""
            words = f"the layer is dead: its output is always zero{more}"
            if cause:
                words = f"all its weights are zero, so the output of {some(names, 2)} is always zero"
            yield Sighting(cause or names[0], 1.0, words, ERROR)


@rule("MS203", "dead-units", WARNING, 0.99, most=1, needs=FORWARD, excuse=_too_few_values)
def _dead_units(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A ReLU is almost inactive: its live channels hardly ever fire.

    Measure: share of zeros in the channels that are not dead
    Source: SageMaker Debugger, DeadRelu: threshold_inactivity = 1 %
    Hint: lower the learning rate, check the biases before it, or use a leaky activation
    Why: a unit that rarely fires rarely learns, so most of the layer's capacity is unused
    """
    for row, enough in _rectifiers(evidence):
        alive = 1 - _dead_share(row)
        share = 1 - (1 - (row.zero_fraction or 0.0)) / alive if alive else 0.0
        if enough and share > threshold:
            words = f"{percent(share, 1)} of the values outside dead channels are zero"
            yield Sighting(label_of(row), share, words)


@rule("MS204", "saturated", WARNING, 0.5, most=1, needs=FORWARD, excuse=_unseen)
def _saturated(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Most outputs of a sigmoid or tanh are where its derivative is below 1 % of the maximum.

    Measure: share of outputs (|x| > 5.99 at a sigmoid, 2.99 at a tanh)
    Source: SageMaker Debugger, SaturatedActivation: threshold_layer = 50 %
    Hint: normalise before it, or initialise with smaller weights (Glorot & Bengio 2010)
    Why: where the curve is flat the derivative is almost zero, and the layers before it do not learn
    """
    assert evidence.forward is not None
    for call in evidence.forward.flow:
        share = call.saturated_fraction
        if share is not None and share > threshold:
            words = f"{percent(share, 1)} of the outputs of this {call.type} are saturated"
            yield Sighting(label_of(call), share, words)


@rule(
    "MS205",
    "near-zero-activations",
    WARNING,
    0.95,
    most=1,
    needs=FORWARD,
    yields_to=("MS202",),
    excuse=_unseen,
)
def _near_zero(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The output of a convolution, linear layer or norm is almost zero, or a trained block changes nothing.

    Measure: share of |x| < 1e-6; of a block, |output - input| / |input| below 0.001
    Source: the resolution of float32 is 1.2e-7: such values are almost lost when added to a signal near 1
    Hint: check the scale of its input and weights; in a block, those of its last layers and LayerScale
    Why: a signal this small is lost in rounding, and the layers after it receive a constant
    """
    assert evidence.forward is not None
    idle = idle_blocks(evidence)
    most = max(idle.values(), default=1.0)
    if 1 - most > threshold:
        block, *more_blocks = idle
        within = f" within {rounded(100 * most)} %" if most else ""
        also = f"; also {some(more_blocks)}" if more_blocks else ""
        yield Sighting(block, 1 - most, f"this block changes nothing: its output is its input{within}{also}")
    rows = [row for row in _rows(evidence, *_WEIGHTED, *_NORMS) if not is_inside(row.name, idle)]
    for is_wrong, run in groupby(rows, key=lambda row: (row.near_zero_fraction or 0.0) > threshold):
        if is_wrong:
            first, *others = run
            share = max(row.near_zero_fraction or 0.0 for row in (first, *others))
            seen = percent(first.near_zero_fraction or 0.0, 1)
            message = f"{seen} of the output is below {evidence.forward.near_zero:g} in magnitude"
            message += ", as all its weights are zero" * (first.name in evidence.zero_layers)
            more = f"; also in {counted(len(others), 'layer')} after it" if others else ""
            yield Sighting(label_of(first), share, message + more)


_NO_CHANGE = 1e-3  # |output - input| / |input| of a block


def idle_blocks(evidence: Evidence) -> dict[str, float]:
    """Return the outermost blocks of a trained model whose output is their input, with how much they change it."""
    if evidence.forward is None or not (evidence.is_loaded or evidence.is_trained):
        return {}  # many are initialised so
    changes: dict[str, float] = {}
    for call in evidence.forward.flow:
        if call.relative_change is not None and call.name:
            changes[call.name] = max(changes.get(call.name, 0.0), call.relative_change)
    idle = {name: change for name, change in changes.items() if change < _NO_CHANGE}
    return {name: change for name, change in idle.items() if not is_inside(name, idle)}


def is_inside(name: str, blocks: Collection[str]) -> bool:
    return any(name.startswith(f"{block}.") for block in blocks)


def _no_scores(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.forward is not None
    if evidence.forward.score_std is None:
        return "the output is not a row of class scores"
    if evidence.forward.lost and evidence.forward.output_spread:
        return "the output hardly depends on the input (MS604)"
    return foreign_statistics(evidence) if evidence.forward.is_finite else "forward values are not finite"


@rule("MS206", "poor-initialisation", WARNING, LARGE_SCORES, needs=FORWARD, wants=_INPUTS, excuse=_no_scores)
def _large_scores(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The class scores are so large that their softmax is saturated, usually because signals grow with depth.

    Measure: standard deviation of the scores over the classes, as root mean square over the images
    Source: our measurement of seeded networks of 4 to 32 layers, trained by SGD and Adam: of 188, all 89 above 30
        failed to train, and 14 of those below; of 161 others, all 33 above and 8 below. At most 2.6 in 56 untrained
        torchvision networks and timm
    Hint: use torch.nn.init.kaiming_normal_(weight, nonlinearity='relu'), a norm after each layer, or normalised
        inputs
    Why: the loss starts far above chance, gradients grow with the scores, and the first steps overwrite the weights
    """
    assert evidence.forward is not None
    std = evidence.forward.score_std
    if std is None or not std > threshold:
        return
    rows = [row for row in _rows(evidence, *_WEIGHTED) if row.std]
    stds = [("the input", evidence.inputs[0].std)] if evidence.inputs and evidence.inputs[0].std else []
    stds += [(label_of(row), row.std or 0.0) for row in rows]
    steps = [(after / before, name) for (_, before), (name, after) in pairwise(stds) if before and after]
    words = f"the class scores have a standard deviation of {std:.3g}"
    times, layer = max(steps, default=(1.0, None))
    if layer is not None:
        words += f", {stds[0][0]} of {stds[0][1]:.3g}; it grows most here, by {rounded(times)}x"
    yield Sighting(layer, std, words)


@rule(
    "MS207",
    "batch-norm-drift",
    WARNING,
    3,
    needs=frozenset({"train", "batch_norms"}),
    yields_to=("MS208",),
    excuse=_no_drift_to_judge,
)
def _drift(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The running statistics of a batch norm do not match these images.

    Measure: the larger of |batch mean - running mean| / running std and |ln(variance ratio)|; above 0.2 plus
        2 / sqrt(images) where the statistics are mostly initial values, or if fewer predictions are right with them
    Source: our measurement: at most 1.1 for a trained network on 1 to 10 of its images; 3 means a variance 20 times
        as large or as small
    Hint: run some 50 training batches in train mode with momentum=0.1, without updating weights, and save; or check
        the preprocessing (--mean, --std, --size)
    Why: in eval mode the output is shifted and scaled differently than the layers after it were trained on
    """
    assert evidence.train is not None
    states = {norm.name: norm for norm in evidence.batch_norms}
    cause, less_right = right_by(evidence)
    less_right *= cause == "norms"
    if less_right and evidence.train.code:
        rest = f"the code of {some(evidence.train.code)} reads self.training"
        less_right += f": update them with the rest of the model in eval mode, as {rest}"
    unfit = []
    gaps = [
        (max(row.mean_gap, abs(math.log(row.var_ratio)) if row.var_ratio > 0 else math.inf), row)
        for row in evidence.train.batch_norm
    ]
    for value, row in gaps:
        is_told = less_right or states[row.name].start_share > _MOSTLY_INITIAL
        if is_told and not value <= _SOME_DRIFT + 2 / math.sqrt(evidence.train.images):
            unfit.append(row)
        elif not value <= threshold:
            off = f"is {rounded(row.mean_gap)} std from the running mean"
            varies = f"is {rounded(row.var_ratio)}x the running variance"
            yield Sighting(label_of(row), value, f"the batch mean {off}; the batch variance {varies}")
    if less_right and gaps and not unfit:
        unfit = [max(gaps, key=itemgetter(0))[1]]
    if unfit:
        first, *others = dict.fromkeys(row.name for row in unfit)
        state, row = states[first], unfit[0]
        words = "its running statistics do not match these images"
        if state.start_share > _MOSTLY_INITIAL and row.momentum:
            covered = percent(1 - (1 - row.momentum) ** state.batches, 1)
            words += f": {state.batches} batches at momentum {row.momentum:g} replace only {covered} of them"
        times = f"{rounded(row.var_ratio_min)}x to {rounded(row.var_ratio_max)}x"
        also = f"; also {some(others)}" if others else ""
        words += f"; the batch variance is {times} the running variance{also}{less_right}"
        yield Sighting(first, None, words)


_MOSTLY_INITIAL = 0.5  # share of the initial values in running statistics
_SOME_DRIFT = 0.2
_FEWER_RIGHT = 0.2


def right_by(evidence: Evidence) -> tuple[str, str]:
    """Return what makes predictions right in train mode, and the accuracies in words; empty where nothing does.

    It is the first of `code` and `norms` that alone gives the accuracy of train mode, else `all`: by more
    than in eval mode, beyond what chance explains.
    """
    train, accuracy = evidence.train, evidence.accuracy
    if train is None or accuracy is None:
        return "", ""
    trials = {
        "code": (train.code_right, "only this code"),
        "norms": (train.norms_right, "the norms"),
        "all": (train.right, "the whole model"),
    }
    for cause, (right, what) in trials.items():
        if right is None or (train.right is not None and train.right.is_above(right)):
            continue
        if right.is_above(accuracy.right) and right.value - accuracy.right.value >= _FEWER_RIGHT:
            values = percent(accuracy.right.value, 1), percent(right.value, 1)
            return cause, f"; accuracy {values[0]} in eval mode, {values[1]} with {what} in train mode"
    return "", ""


_FOREIGN = 100  # square of the inputs of a batch norm
_NOISE = 10  # how much further off noise may be, which no network is trained on
_FLATTER = 10  # how much further the variance may be below 1 than the mean square above it
_YOUNG = 0.01  # share of the initial values above which statistics say nothing of small variances
_SOME_BATCHES = 10


def _no_statistics_to_judge(evidence: Evidence, threshold: float) -> str | None:
    assert evidence.forward is not None
    if not evidence.forward.is_finite:
        return "forward values are not finite"
    if (why := unused_statistics(evidence)) or evidence.forward.norms:
        return why
    unused = "no torch.nn batch norm uses running statistics here"
    return unused if _may_have_batch_norm(evidence) else NO_NORM


def foreign_statistics(evidence: Evidence) -> str | None:
    """Return why what a batch norm passes on says nothing of the model; None where MS208 finds nothing."""
    foreign = "the statistics of a batch norm were computed from other inputs (MS208)"
    return (unused_statistics(evidence) or foreign) if foreign_inputs(evidence, _FOREIGN) else None


def foreign_inputs(evidence: Evidence, limit: float) -> list[tuple[NormInput, float]]:
    """Return the calls of batch norms whose inputs are not those of their statistics, with the measure of MS208.

    A flat image has a small variance by itself, and so has one behind statistics that are still near 1, their
    initial value.
    """
    assert evidence.forward is not None
    young = {norm.name for norm in evidence.batch_norms if norm.start_share > _YOUNG}
    contrast = min(1.0, max((one.std or 0.0 for one in evidence.inputs), default=1.0)) ** 2
    far = []
    for norm in evidence.forward.norms:
        value = norm.square
        if norm.variance is not None and norm.name not in young and contrast:
            value = max(value, contrast / _FLATTER / norm.variance if norm.variance else math.inf)
        if not value <= limit:
            far.append((norm, value))
    return far


@rule(
    "MS208",
    "foreign-statistics",
    WARNING,
    _FOREIGN,
    needs=FORWARD,
    wants=_INPUTS,
    excuse=_no_statistics_to_judge,
)
def _foreign(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A batch norm receives inputs unlike those that its running statistics were computed from.

    Measure: mean square of the normalised input, (x - running mean) / running std, in eval mode; or 0.1 divided by
        its variance
    Source: Markov's inequality: at most 1 in 100 training inputs exceeds 100. Our measurement: 0.03 to 2 in 26
        trained networks, 0.005 to 11 on noise
    Hint: modelscope stats MODEL IMAGE... --mode train   shows the largest gap; save the weights and buffers of
        the same model together, or update the statistics on training images
    Why: the norm outputs values on a different scale than the layers after it were trained on
    Error if: the inputs are images, or the value is above 10 times the threshold
    """
    far = foreign_inputs(evidence, threshold)
    if far:
        is_error = evidence.is_real or bool(foreign_inputs(evidence, _NOISE * threshold))
        (first, value), *others = far
        if not first.square <= threshold:
            times = rounded(math.sqrt(first.square))
            words = f"its inputs are {times} times as large as its running statistics imply"
        elif first.variance:
            times = rounded(first.variance**-0.5)
            words = f"its inputs vary {times} times less than its running statistics imply"
        else:
            words = "its inputs are constant, but its running variance is not zero"
        if others:
            words += f"; also in {counted(len(others), 'batch norm')} after it"
        yield Sighting(label_of(first), value, words, ERROR if is_error else None)


def _no_trained_norm(evidence: Evidence, threshold: float) -> str | None:
    is_new = evidence.is_fresh or (evidence.norms and not evidence.batch_norms)
    is_judged = evidence.untrained or evidence.is_trained or (evidence.is_loaded and is_new)
    has_norm = evidence.norms or _may_have_batch_norm(evidence)
    unjudged = "no norm was changed by training" if has_norm else NO_NORM
    return _unseen(evidence, threshold) or (None if is_judged else unjudged)


@rule("MS209", "norm-as-made", WARNING, 0, needs=FORWARD, excuse=_no_trained_norm)
def _as_made(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """A norm of a trained or loaded model still has its initial statistics, or its initial scale and shift; or the
    file lacks the weights of a layer.

    Measure: norms that run with their initial values, or layers whose weights the file lacks
    Source: torch.nn.BatchNorm2d, track_running_stats: each batch in train mode updates them; torch.optim.SGD: each
        step changes every parameter that has a gradient
    Hint: modelscope weights FILE   lists the contents of the file; load parameters and buffers with strict=True
    Why: these layers were never loaded, or were reset: in eval mode they do not compute what was trained
    Error if: the model is trained, or the file lacks weights
    """
    assert evidence.forward is not None
    yield from (Sighting(None, 1, message, ERROR) for message in evidence.untrained)
    called = {call.name for call in evidence.forward.flow}
    states = {norm.name: norm for norm in evidence.batch_norms}
    parameters = {norm.name: norm for norm in evidence.norms}
    is_learnt = any(norm.is_trained for norm in evidence.norms)
    is_new = evidence.is_loaded and not evidence.batch_norms  # then every norm is as made, or it is learnt
    found = []
    for name in dict.fromkeys((*states, *parameters)):
        state, norm = states.get(name), parameters.get(name)
        if state is not None and state.is_fresh:
            found.append((name, "its running statistics are the initial ones, mean 0 and variance 1"))
        elif (
            norm is not None
            and norm.is_as_made
            and (is_learnt or is_new or (state and state.batches >= _SOME_BATCHES))
        ):
            found.append((name, "its scale and shift still have their initial values"))
    found = [(name, words) for name, words in found if name in called]
    if len(found) > threshold:
        (name, words), *others = found
        n = len({*states, *parameters} & called)
        more = f"; so are those of {counted(len(others), 'other norm')} of {n}" if others else ""
        if evidence.is_trained:
            yield Sighting(name, len(found), f"{words}, although the model is trained{more}", ERROR)
        else:
            message = f"{words}{more}: the weights of the file are untrained, or were saved before training"
            yield Sighting(name, len(found), message)
