"""MS718 and MS743: trained in evaluation mode, validated in training mode. Certain after a few steps."""

from collections.abc import Iterator

from modelscope_cli.records.check import WARNING
from modelscope_cli.records.watch import ACTIVE
from modelscope_cli.rules.training.rule_types import FEW_STEPS, Case, Link, TrainingSighting, training_rule


@training_rule("MS718", "trained-in-evaluation-mode", WARNING, FEW_STEPS, Link.BOOKKEEPING)
def trained_in_evaluation(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A model with dropout or batch norm is trained in evaluation mode.

    Measure: steps in a row in evaluation mode, until the end
    Source: certain: .training was False in every pass with gradients
    Hint: call model.train() before the steps, and again after every evaluation
    Why: dropout is off, and batch norm normalises by statistics that are never updated
    """
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


@training_rule("MS743", "validated-in-training-mode", WARNING, 3, Link.BOOKKEEPING)
def validated_in_training(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A model with dropout or batch norm is validated in training mode.

    Measure: losses without gradients, all of them in training mode
    Source: certain: .training was True in every pass without gradients that led to a loss
    Hint: call model.eval() before the validation, and model.train() after it
    Why: dropout makes the result noisy, and the validation images change the running statistics of batch norm
    """
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
