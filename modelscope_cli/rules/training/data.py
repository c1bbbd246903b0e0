"""Rules about the inputs of the model, in batches and over ranks, and the time that they take."""

import math
import statistics
from collections.abc import Iterator
from itertools import pairwise

from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import counted, percent
from modelscope_cli.records.training_facts import INPUT
from modelscope_cli.records.watch import DROPPED, LAYOUT, SAME_DATA, WatchedInput
from modelscope_cli.rules.training.progress import late_loss
from modelscope_cli.rules.training.rule_types import (
    FEW_STEPS,
    Case,
    Link,
    TrainingSighting,
    known,
    training_rule,
)

_BYTE = 255.0
_DIM, _BRIGHT = 0.3, 1.001  # the highest value of images that were divided by 255 twice, times 255
_SPARSE = 0.1  # of a range of at most 1: nearly all values are equal. Standardised data has peaks beyond ten.
_FLAT = 0.02  # standard deviation, for example of images that were divided by 255 twice
_IMAGE_CHANNELS = (1, 3, 4)
_MANY_VALUES = 32  # a channel
_FAR = 3.0  # times the standard deviation: more than the difference between sets of images
_WORSE = 1.5  # times the loss in training
_LEAST_S = 5.0  # lost to one thing; below that nothing is worth a change
_LEAST_STEPS = 8
_NORMALISERS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "Embedding")


def _entering(case: Case) -> list[WatchedInput]:
    """Return the inputs of numbers that were recorded, without tokens."""
    return [one for one in case.facts.inputs if one.series.step and not one.dtype.startswith("int")]


def _first_layer(case: Case, model: str) -> WatchedInput | None:
    """Return the input of the first layer with weights, as a model may normalise its input itself."""
    return next((one for one in _entering(case) if one.model == model and one.type), None)


@training_rule("MS726", "input-not-normalised-in-training", WARNING, 10, Link.DATA)
def not_normalised(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The first layer receives values whose standard deviation is far from 1.

    Bytes of an image without a norm after the first layer; or any input as large, in a training that fails.

    Measure: mean or standard deviation of the input if training fails; for images, the largest value
    Source: LeCun, Bottou, Orr, Müller 1998, Efficient BackProp, section 4.3: mean near 0, variance near 1
    Hint: divide images by 255, subtract the mean and divide by the standard deviation of the data
    Why: the gradients of the first layer scale with its input, so one step changes its weights far too much
    """
    for model in dict.fromkeys(one.model for one in _entering(case)):
        first = _first_layer(case, model)
        if first is None or len(first.series.step) < 3 or first.type.startswith(_NORMALISERS):
            continue
        if any(one.is_computed for one in _entering(case) if one.model == model and not one.type):
            continue  # by another model, not data
        low, high = min(known(first.series.min), default=0.0), max(known(first.series.max), default=0.0)
        means, stds = known(first.series.mean), known(first.series.std)
        if not means or not stds:
            continue
        mean, std = statistics.fmean(means), statistics.fmean(stds)
        # One that grows is not the data's.
        size, size_at_first = max(abs(mean), std), max(abs(means[0]), stds[0])
        is_image = len(first.shape) == 4 and first.shape[1] in _IMAGE_CHANNELS
        is_bytes = is_image and low >= 0 and threshold < high <= _BYTE
        is_certain = is_bytes and not _is_normalised(case, first)
        if is_certain or (case.fails and min(size, size_at_first) > threshold):
            what = "these look like bytes, 0 to 255" if is_bytes else "the standard deviation is far from 1"
            words = f"the first layer, {first.name or first.type}, receives values from {low:.3g} to"
            words += f" {high:.3g} with a mean of {mean:.3g} and a standard deviation of {std:.3g}: {what}"
            link = None if is_certain else Link.INITIALISATION  # likely, but not certain
            yield TrainingSighting(None, first.series.step[0], size, words, case.called(model), link=link)


def _is_normalised(case: Case, first: WatchedInput) -> bool:
    """Tell whether a norm of the batch comes right behind the first layer: it takes any scale out again."""
    kinds = [one for one in case.course.layers if one.model == first.model]
    behind = [after.type for one, after in pairwise(kinds) if one.name == first.name]
    return bool(behind) and behind[0].startswith("BatchNorm")


@training_rule("MS727", "input-is-constant", ERROR, 3, Link.DATA)
def constant_input(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The input of the model is constant or almost constant.

    Measure: recorded steps with the same input; or images whose highest value is about 1/255
    Source: certain: a model cannot distinguish identical inputs
    Hint: check what the data set returns; ToTensor already divides by 255
    Why: the model can at best learn how often each label occurs
    """
    for model in dict.fromkeys(one.model for one in _entering(case)):
        inputs = [one for one in _entering(case) if one.model == model]
        one = ([one for one in inputs if not one.type] or inputs)[0]
        stds = known(one.series.std)
        is_short = len(one.series.step) < threshold or not stds
        if one.is_computed or is_short or any(one.series.non_finite):
            continue  # computed by another model, too few values, or another finding
        link = None
        highest, lowest = max(known(one.series.max), default=0.0), min(known(one.series.min), default=0.0)
        is_image = len(one.shape) == 4 and one.shape[1] in _IMAGE_CHANNELS
        is_tiny = is_image and lowest >= 0 and _DIM < _BYTE * highest < _BRIGHT
        first = _first_layer(case, model)
        if max(stds) == 0:
            size, words = 0.0, f"every input value of {model} is {known(one.series.mean)[0]:.3g}"
        elif case.fails and max(stds) < max(_FLAT, _SPARSE * min(highest - lowest, 1.0)):
            size, link = max(stds), Link.INITIALISATION  # likely, but not certain
            words = f"the input of {model} hardly varies: its standard deviation is {size:.2g}"
        elif is_tiny and first and not (first.type.startswith(_NORMALISERS) or _is_normalised(case, first)):
            size = highest
            words = f"images with values from 0 to {size:.2g} enter {model}: they were divided by 255 twice"
        elif all(one.series.is_alike):
            size, words = 0.0, f"all samples in each batch of {model} are the same"
        else:
            continue
        yield TrainingSighting(None, one.series.step[0], size, words, case.called(model), link=link)


@training_rule("MS728", "input-not-finite", ERROR, 0, Link.DATA)
def input_not_finite(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """NaN or infinite values enter the model.

    Measure: values that are not finite
    Source: IEEE 754: NaN passes through every sum
    Hint: check the data: torch.isfinite(images).all()
    Why: from then on all weights are NaN, and the rest of the run is wasted
    """
    for one in _entering(case):
        step = next(
            (s for s, n in zip(one.series.step, one.series.non_finite, strict=True) if n > threshold), None
        )
        if step is not None and not one.type and not one.is_computed:  # else computed by another model
            birth = case.born()
            if birth is not None and birth.what != INPUT and birth.step <= step:
                continue  # it gets its own output
            words = f"NaN or infinite values enter {one.model} at step {step}"
            yield TrainingSighting(None, step, max(one.series.non_finite), words, case.called(one.model))
            return


@training_rule("MS732", "batch-norm-of-one", WARNING, 1, Link.DATA)
def batch_of_one(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Batch norm in training mode receives batches of one sample.

    Measure: samples per batch
    Source: Wu and He 2018, Group Normalization: the error rises steeply below 8 samples per batch
    Hint: use larger batches, or GroupNorm, or freeze the statistics with .eval() on these layers
    Why: a channel normalised over one value is constant, and in evaluation the model computes a different function
    """
    for one in case.facts.models:
        if one.norm_values is None or one.steps_in_training < FEW_STEPS:
            continue
        values, batch = one.norm_values
        # Images may be normalised one by one, unless those in validation use the statistics of all.
        is_meant = values > _MANY_VALUES and not case.may_fail() and not one.validated
        if values <= threshold or (batch <= threshold and not is_meant):
            norms = (row for row in case.course.layers if (row.model, row.name) == (one.model, one.norm_name))
            given = f"batches of {batch}, {counted(values, 'value')} per channel"
            words = f"batch norm receives {given}: its statistics are noise"
            link = Link.DATA if case.fails and values <= _MANY_VALUES else None  # else it may learn
            yield TrainingSighting(next(norms, None), 0, batch, words, one.called, link=link)


@training_rule("MS760", "validated-on-other-values", WARNING, 1.8, Link.DATA)
def validated_otherwise(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A model is validated on inputs scaled differently than in training, and does worse on them.

    Measure: ratio of the standard deviations of the model's input in both, or 1 + the distance of its means in
        standard deviations; 3 for images if no criterion is computed
    Source: derived: 2 if one set is normalised to -1..1 and the other left at 0..1, 4 with the mean and std of
        ImageNet
    Hint: preprocess both sets in the same way: scale, mean, standard deviation and channel order
    Why: the validation does not measure the model as it is used, and may select the wrong checkpoint
    """
    for model in case.facts.models:
        given = next((one for one in _entering(case) if one.model == model.model and not one.type), None)
        if not model.validated or given is None or case.fails or given.is_computed:
            continue
        n_judged, mean, std = model.validated
        means, stds = known(given.series.mean), known(given.series.std)
        if not stds or not (own := statistics.median(stds)) or not math.isfinite(mean + std):
            continue
        own_mean = statistics.median(means)
        ratio = max(std / own, own / std) if std else math.inf
        away = max(ratio, 1 + abs(mean - own_mean) / own)
        is_image = len(given.shape) == 4 and given.shape[1] in _IMAGE_CHANNELS
        if away > threshold and (_does_worse(case) if n_judged else is_image and away > _FAR):
            words = f"{model.model} is validated on values with a mean of {mean:.3g} and a standard"
            words += f" deviation of {std:.3g}, and trained on values with {own_mean:.3g} and {own:.3g}"
            yield TrainingSighting(None, None, away, words, model.called)


def _does_worse(case: Case) -> bool:
    """Tell whether a criterion is much higher in evaluation than in training at the end."""
    ends = [((one.name, one.classes), one.is_training, late_loss(one) or 0.0) for one in case.facts.criteria]
    trained = {kind: end for kind, is_training, end in ends if is_training}
    return any(
        end > _WORSE * trained.get(kind, math.inf) > 0 for kind, is_training, end in ends if not is_training
    )


@training_rule("MS767", "image-layout", WARNING, 1.5, Link.DATA)
def layout(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Images stored as height, width, channels are read as channels, height, width.

    Measure: mean difference of neighbouring pixels, divided by that of the same values read in the other order
    Source: derived: neighbouring pixels of an image are alike, so the ratio is below 1 in the right order
    Hint: use permute(0, 3, 1, 2) or permute(2, 0, 1), not view or reshape
    Why: the model gets scrambled images, in which neighbouring pixels are unrelated
    """
    return case.told(LAYOUT)


@training_rule("MS764", "dropout-of-nearly-everything", WARNING, 0.9, Link.INITIALISATION)
def dropped(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A dropout layer sets nearly all of its input to zero, and there is no sign that the model learns.

    Measure: dropout probability p of the layer
    Source: Srivastava et al. 2014, section 7.3: 0.2 to 0.5 are usual; our choice: 0.9
    Hint: lower p, the share of values set to 0
    Why: little of each sample reaches the next layers, and what does is scaled up by 1 / (1 - p)
    """
    if case.progress.learns is not True:
        yield from case.told(DROPPED)


@training_rule("MS734", "ranks-see-the-same-data", WARNING, 3, Link.DATA, is_alone=True)
def same_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Every rank receives the same batches.

    Measure: recorded steps with the same input statistics in every rank
    Source: certain: mean, standard deviation and range agree to nine digits
    Hint: use DistributedSampler, or seed the shuffling of each rank differently
    Why: several devices do the work of one
    """
    return case.told(SAME_DATA)


@training_rule("MS771", "waits-for-data", WARNING, 0.3, Link.SPEED, is_alone=True)
def waits_for_data(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """The model waits for data during much of each step.

    Measure: share of the time of all steps after the first, if that is five seconds or more in total
    Source: measured; PyTorch, performance tuning guide: asynchronous data loading
    Hint: use more workers and persistent_workers=True, or make samples load faster
    Why: the device is idle meanwhile, and the run takes longer
    """
    time = case.facts.time
    if time is None or time.steps < _LEAST_STEPS:
        return
    if time.share("data") <= threshold or time.seconds["data"] < _LEAST_S:
        return
    words = f"{percent(time.share('data'))} of each step is spent waiting for "
    if time.workers:
        words += f"{time.workers} worker{'s' * (time.workers > 1)}"
        hint = f"DataLoader(num_workers={2 * time.workers}, persistent_workers=True), or load samples faster"
    else:
        words += "data, which the training process loads itself"
        hint = "DataLoader(num_workers=4, persistent_workers=True), so that it loads while the model computes"
    yield TrainingSighting(None, 1, time.share("data"), words, hint=hint)
