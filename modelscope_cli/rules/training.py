"""MS7xx: what goes wrong while a model is trained. Standard library only."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.watch import TrainingFinding, labelling
from modelscope_cli.rules import sightings
from modelscope_cli.rules.rule import ListedRule
from modelscope_cli.rules.sightings import Course, TrainingSighting


@dataclass(frozen=True, slots=True)
class TrainingRule(ListedRule):
    """A named check of a run: `judge` gives every place where it lies beyond `threshold`."""

    threshold: float
    judge: Callable[[Course, float], Iterator[TrainingSighting]]


def judge_training(course: Course) -> tuple[TrainingFinding, ...]:
    """Return what the rules find: errors first, then as it happened, step by step and layer by layer.

    For one thing leads to the next.
    """
    found = [(rule, seen) for rule in RULES for seen in rule.judge(course, rule.threshold)]
    places = {id(row): place for place, row in enumerate((*course.layers, *course.parameters))}
    found.sort(key=lambda one: (one[0].severity != ERROR, one[1].step, places.get(id(one[1].row), -1)))
    label = labelling(course.layers, course.parameters)
    return tuple(
        TrainingFinding(
            code=rule.code,
            rule=rule.name,
            severity=rule.severity,
            layer=label(seen.row) if seen.row else None,
            since_step=seen.step,
            value=seen.value,
            threshold=rule.threshold,
            message=seen.message,
            hint=rule.hint,
        )
        for rule, seen in found
    )


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
        judge=sightings.loss_not_finite,
    ),
    TrainingRule(
        code="MS702",
        name="output-not-finite",
        severity=ERROR,
        sentence="a layer outputs NaN or infinite values",
        threshold=0,
        measure="values that are not finite in one output",
        source="IEEE 754: NaN passes through every sum",
        hint="look for a division, a logarithm or an overflow in it, or a learning rate that is too high",
        judge=sightings.output_not_finite,
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
        judge=sightings.gradient_not_finite,
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
        judge=sightings.diverging,
    ),
    TrainingRule(
        code="MS705",
        name="dying-units",
        severity=WARNING,
        sentence="a ReLU outputs next to nothing but zeros, and keeps doing so",
        threshold=0.9,
        measure="share of zeros in the output of a ReLU, to the end",
        source="a ReLU of a symmetric input is zero half of the time; own choice: nine tenths",
        hint="lower the learning rate, initialise by kaiming_normal_, add a norm, or use a leaky activation",
        judge=sightings.dead,
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
        judge=sightings.exploding,
    ),
    TrainingRule(
        code="MS707",
        name="vanishing-in-training",
        severity=WARNING,
        sentence="next to no gradient arrives at a weight",
        threshold=1e-7,
        measure="norm of a weight's gradient, to the end",
        source="float32 has 2**-23, about 1.2e-7: added to a weight near 1, nothing changes",
        hint="add shortcuts or norms, look for dead or saturated activations behind it, or freeze it if meant",
        judge=sightings.vanishing,
    ),
    TrainingRule(
        code="MS708",
        name="exploding-in-training",
        severity=WARNING,
        sentence="the gradient of a weight is very large",
        threshold=1e3,
        measure="norm of a weight's gradient, to the end",
        source="Pascanu, Mikolov, Bengio 2013, section 3.2: clip at 0.5 to 10 times the usual norm, near 1",
        hint="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0) before the step, or a lower learning rate",
        judge=sightings.exploding_gradients,
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
        judge=sightings.large_updates,
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
        judge=sightings.small_updates,
    ),
)
