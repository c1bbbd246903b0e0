"""MS718 and MS743: trained in evaluation mode, validated in training mode. Certain after a few steps."""

from collections.abc import Iterator

from modelscope_cli.records.check import WARNING
from modelscope_cli.records.watch import ACTIVE
from modelscope_cli.rules.training.case import FEW_STEPS, Case, Link, TrainingRule, TrainingSighting


def trained_in_evaluation(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    for one in case.facts.models:
        since = one.evaluation_since
        if since is None or not one.frozen_modes or case.course.steps - since < threshold:
            continue
        if not any(
            parameter.model == one.model and parameter.optimizer for parameter in case.course.parameters
        ):
            continue
        when = (
            "never trained in training mode"
            if since == 0
            else f"trained in evaluation mode since step {since}"
        )
        words = f"{one.model} is {when}: its {' and '.join(one.frozen_modes)} layers behave as in evaluation"
        yield TrainingSighting(None, since, case.course.steps - since, words, one.called)


def validated_in_training(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """What a criterion judges without gradients was computed in training mode, and never otherwise."""
    held = {one.model for one in case.course.parameters if one.optimizer}
    for one in case.facts.models:
        in_training, in_evaluation = one.evaluated
        if one.model in held and in_training >= threshold and not in_evaluation and one.loose_modes:
            words = (
                f"{one.model} is validated in training mode, in {in_training:,} passes: its "
                f"{' and '.join(one.loose_modes)} layers behave as in training"
            )
            yield TrainingSighting(None, 0, in_training, words, one.called)
        for event in case.course.events:
            is_own = event.kind == ACTIVE and event.message.startswith(f"{one.model}: ")
            if is_own and one.validated and not one.is_sampled:
                yield TrainingSighting(None, event.step or 0, None, event.message, hint=_SWITCH_OFF)


_SWITCH_OFF = (
    "give training=self.training to functional.dropout, and to scaled_dot_product_attention a dropout_p of 0 "
    "unless self.training"
)
RULES = (
    TrainingRule(
        code="MS718",
        name="trained-in-evaluation-mode",
        severity=WARNING,
        sentence="a model with dropout or batch norm is trained in evaluation mode",
        threshold=FEW_STEPS,
        measure="steps in a row in evaluation mode, until the end",
        source="certain: .training was False in every pass with gradients",
        hint="call model.train() before the steps, and again after every evaluation",
        link=Link.BOOKKEEPING,
        judge=trained_in_evaluation,
    ),
    TrainingRule(
        code="MS743",
        name="validated-in-training-mode",
        severity=WARNING,
        sentence="a model with dropout or batch norm is validated in training mode",
        threshold=3,
        measure="losses without gradients, all of them in training mode",
        source="certain: .training was True in every pass without gradients that led to a loss",
        hint="call model.eval() before the validation, and model.train() after it",
        link=Link.BOOKKEEPING,
        judge=validated_in_training,
    ),
)
