"""Rules about optimizers, parameters, gradients and modes. Certain."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.naming import counted, percent
from modelscope_cli.records.training_facts import OptimizerFacts
from modelscope_cli.records.watch import (
    ACTIVE,
    COLLAPSED,
    DETACHED,
    LISTED,
    LOOSE,
    STALE_NORMS,
    TAUGHT,
    UNHELD,
    UNLOADED,
    WatchedParameter,
)
from modelscope_cli.rules.training.guessing import scale_of
from modelscope_cli.rules.training.rule_types import (
    FEW_STEPS,
    Case,
    Link,
    TrainingSighting,
    is_inferred,
    training_rule,
)

_MOSTLY = 0.9  # of the cycles, of the parameters
_ALIKE = 0.1  # of a scale
_COPIED = "copy the buffers too: for a, b in zip(average.buffers(), model.buffers()): a.copy_(b)"
_ONCE = "call optimizer.zero_grad() once after each optimizer.step(), not before each backward()"
_IN_CLOSURE = "call optimizer.zero_grad() first in the closure, which LBFGS calls several times a step"
_FIXED = "; if it is a teacher, call it under torch.no_grad() and leave its parameters out of the optimizer"
_TEACHER = "leave a teacher out of the optimizer; a model that is to be trained must run outside of no_grad()"
_OUT = "make the optimizer from the student's parameters only, and run the teacher in eval() under torch.no_grad()"
_FREE = "pass the optimizer [p for p in model.parameters() if p.requires_grad], once every layer is in place"


def size_of(parameters: Sequence[WatchedParameter]) -> int:
    return sum(math.prod(one.shape) for one in parameters)


def _share(n: int, total: int) -> str:
    """Return `all 9 recorded steps`, or `8 of 9 recorded steps`."""
    return f"{f'all {n}' if n == total else f'{n} of {total}'} recorded steps"


@training_rule("MS711", "no-optimizer-step", ERROR, 3, Link.BOOKKEEPING)
def never_steps(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Backward runs, but no optimizer ever steps.

    Measure: backward passes without a step
    Source: certain: no parameter has changed
    Hint: call optimizer.step() after loss.backward()
    Why: the run ends with exactly the weights it began with
    """
    facts = [facts for _, facts in case.stated()]
    if case.course.steps or case.facts.backwards < threshold or not case.facts.idle:
        return
    if any(one.has_changed for one in facts) or not any(one.has_gradient for one in facts):
        return
    kind, made_at = case.facts.idle[0]
    words = f"{case.facts.backwards} backward passes, but {kind} never stepped: no parameter has changed"
    yield TrainingSighting(None, 0, case.facts.backwards, words, made_at)


@training_rule("MS712", "not-in-the-optimizer", WARNING, FEW_STEPS, Link.BOOKKEEPING)
def not_held(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Parameters receive gradients but are in no optimizer.

    Measure: steps without a change
    Source: certain: they keep their initial values
    Hint: make the optimizer from model.parameters() after the last layer is in place; freeze the rest with
        requires_grad_(False)
    Why: these parameters keep their initial values, and the other layers have to compensate
    Error if: the optimizer holds parameters of no running model, none with a gradient, or none of a whole model
    """
    if case.course.steps < threshold or not case.facts.optimizers:
        return
    unheld = [
        one
        for one, facts in case.stated()
        if _is_left(one) and facts.requires_grad and facts.has_gradient and not facts.has_changed
    ]
    held_facts = [facts for one, facts in case.stated() if one.optimizer]
    if held_facts and all(facts.has_run and not facts.has_gradient for facts in held_facts):
        unheld = [one for one in unheld if one.model != LOOSE]  # MS715: made so that backward runs
    models = {one.model for one in case.course.parameters if one.optimizer}
    strangers = next((one for one in case.facts.optimizers if one.strangers), None)
    holds_others_only = bool(held_facts) and not any(facts.has_gradient for facts in held_facts)
    told = {event.message.partition(":")[0] for event in case.course.events if event.kind == UNHELD}
    unheld_models = _whole_models(case, unheld, told)
    if strangers is None and not case.fails and not holds_others_only:
        models |= _feeders(case, models) | unheld_models
        unheld = [one for one in unheld if one.model in models]  # another model may be frozen on purpose
    if not unheld:
        return
    first = max(unheld, key=lambda one: len(one.shape) > 1)
    trainable = [one for one, facts in case.stated() if facts.requires_grad]
    weights = [one for one in trainable if one.model == first.model and len(one.shape) > 1]
    ending = max(weights, key=case.position, default=first)
    first = ending if ending in unheld else first  # the head, whose values are random, matters most
    others = [one for one in unheld if one is not first]
    share = size_of(unheld) / max(size_of(trainable), 1)
    state = "is never updated" if first.optimizer else "is in no optimizer"
    words = f"receives gradients but {state}{case.beside(others)}"
    words += f" ({percent(share)} of the trainable parameters)"
    own = {one.optimizer for one in case.course.parameters}
    doubled = [one for one in case.facts.optimizers if not one.strangers and one.optimizer not in own]
    is_whole, place = first.model in unheld_models, _nearest(case, first, bool(doubled))
    is_fed = any(one.model == first.model and one.is_fed for one in case.facts.models)
    is_certain = holds_others_only or (is_whole and (first.model in told or not is_fed))
    if strangers is not None:
        is_certain, place = True, strangers.made
        words += (
            f"; {strangers.optimizer} holds {counted(strangers.strangers, 'parameter')} that belong to no "
            f"running model: they were replaced after the optimizer was made, or belong to another model"
        )
    elif is_whole:
        words += f"; no parameter of {first.model} ever changes"
    if held_facts and not any(facts.requires_grad for facts in held_facts):
        which = "its other parameters" if strangers else "all parameters in the optimizer"
        words += f"; {which} have requires_grad=False"
    if doubled:
        words += f"; {doubled[0].optimizer} holds only parameters that another optimizer also holds"
    is_free = all(x.requires_grad for one, x in case.stated() if one.model == first.model)
    is_other = is_whole and not strangers and bool(models - unheld_models)
    hint = _FREE if not is_free else f"add its parameters to the optimizer{_FIXED}" if is_other else None
    for one in case.told(LISTED):
        held_in, kind = one.message.split(": ")
        words += f"; {held_in} is a plain {kind.lower()}, which registers nothing"
        hint = f"make {held_in} an nn.Module{kind}, so that parameters() and to() include its modules"
    yield TrainingSighting(first, 0, share, words, place, ERROR if is_certain else WARNING, hint=hint)


def _nearest(case: Case, first: WatchedParameter, are_doubled: bool) -> str | None:
    """Return the line that makes the optimizer from which a parameter is missing.

    That of the parameters nearest to it in its model; else, if two hold the same parameters, the last line that
    makes one; else that of a parameter of the same shape, or the last.
    """
    held = [one for one in case.course.parameters if one.optimizer]
    near = [one for one in held if one.model == first.model]
    if not near and are_doubled:
        lines = [one.made or ":0" for one in case.facts.optimizers]
        return max(lines, key=lambda line: int(line.rpartition(":")[2]))
    alike = near or [one for one in held if one.shape == first.shape] or held
    own = first.name.split(".")

    def shared(one: WatchedParameter) -> int:
        return sum(map(str.__eq__, one.name.split("."), own))

    most = max(map(shared, alike))
    best = [one for one in alike if shared(one) == most][-1]
    return case.made(best.optimizer) or case.facts.optimizers[-1].made


def _is_left(one: WatchedParameter) -> bool:
    """Tell whether no optimizer holds it; with inferred steps, any parameter with a gradient may be changed."""
    return not one.optimizer or (is_inferred(one.optimizer) and any(one.series.grad_norm))


def _whole_models(case: Case, unheld: Sequence[WatchedParameter], told: set[str]) -> set[str]:
    """Return the models in training mode without a changing parameter that belong to the trained model.

    A model that judges the output of another also runs on other data, such as the targets, and a model whose input
    is optimised may be frozen on purpose. A head runs only on the output of a trained part. Of two models of the
    same class with the same kind of input, as in a cycle, both are trained or neither. One that was `told` has a
    loss of its own.
    """
    ids = {id(one) for one in unheld}
    changing = {one.model for one in case.course.parameters if one.facts and id(one) not in ids}
    belonging = {
        one.model
        for one in case.facts.models
        if one.has_trained and (not one.is_fed or (one.is_only_fed and changing - {one.model}))
    }
    fed = [one.model for one in case.facts.models if one.has_trained and one.is_fed]
    shapes = {model: [one.shape for one in case.course.parameters if one.model == model] for model in fed}
    twins = {one for one in fed for other in fed if other in changing and shapes[one] == shapes[other]}
    return (belonging | twins | told) - changing


def _feeders(case: Case, trained: set[str]) -> set[str]:
    """Return the models in training mode whose output is the input of a trained one.
    Models in evaluation mode may be frozen on purpose; one that judges the output of a trained one feeds none."""
    fed = {one.model for one in case.facts.inputs if one.is_computed and not one.type}
    are_fed = bool(trained) and trained <= fed
    return {one.model for one in case.facts.models if one.has_trained and are_fed}


@training_rule("MS737", "optimizer-of-another-model", ERROR, FEW_STEPS, Link.BOOKKEEPING)
def holds_strangers(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An optimizer holds parameters of a model that is never run, or of a teacher.

    Measure: steps without a gradient
    Source: certain: no module that runs has these parameters, or a student follows them
    Hint: make the optimizer from the parameters of the trained model, once the model is complete
    Why: the steps change a model that is not used, or should not change
    """
    yield from (replace(one, step=0, hint=_OUT) for one in case.told(TAUGHT))
    for one in _holding_strangers(case, threshold, are_most=True) if case.course.steps >= threshold else ():
        count = counted(one.strangers, "parameter")
        words = f"{one.optimizer} holds {count}, none of which belongs to a model that runs"
        yield TrainingSighting(None, 0, one.strangers, words, one.made)


def _holding_strangers(case: Case, threshold: float, are_most: bool) -> list[OptimizerFacts]:
    """Return the optimizers with parameters of no running model: most, or fewer; none if MS712 is found."""
    found = [one for one in case.facts.optimizers if one.strangers]
    found = [one for one in found if (one.strangers >= _MOSTLY * one.held) == are_most]
    return [] if found and any(not_held.judge(case, threshold)) else found


@training_rule("MS713", "gradients-never-cleared", ERROR, 3, Link.BOOKKEEPING)
def never_cleared(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Gradients are never cleared between the steps.

    Measure: steps in a row whose gradients include those of the previous step
    Source: certain: the gradients used by one step are still there when the next backward pass begins
    Hint: call optimizer.zero_grad() before loss.backward()
    Why: each step follows the sum of all past gradients, not the current one
    """
    for one in case.facts.optimizers:
        if one.cycles >= threshold and one.uncleared >= _MOSTLY * one.cycles:
            is_closure = one.optimizer.startswith("LBFGS")
            each, hint = ("each call of its closure", _IN_CLOSURE) if is_closure else ("each step", None)
            whose = "that the updates use" if is_inferred(one.optimizer) else f"that {one.optimizer} steps by"
            words = f"the gradients {whose} are never cleared: {each} adds to those of all earlier steps"
            words += f" ({_share(one.uncleared, one.cycles)})"
            yield TrainingSighting(None, 1, one.uncleared, words, one.made, hint=hint)


@training_rule("MS714", "gradients-cleared-early", ERROR, 3, Link.BOOKKEEPING)
def cleared_early(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Gradients are cleared between backward and step.

    Also those of all micro-batches but the last.

    Measure: steps that use none of the computed gradients, or only those of one of several passes
    Source: certain: the gradients existed after the backward pass, and were gone at the step
    Hint: call optimizer.zero_grad() before loss.backward(), not between it and optimizer.step()
    Why: the optimizer steps without gradients and changes nothing
    """
    for one in case.facts.optimizers:
        if one.cycles >= threshold and one.emptied >= _MOSTLY * one.cycles:
            words = f"the gradients are cleared between backward() and the step of {one.optimizer}, in"
            words += f" {_share(one.emptied, one.cycles)}: the model cannot learn"
            yield TrainingSighting(None, 1, one.emptied, words, one.made)
    yield from _all_but_last(case, threshold)


def _all_but_last(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Several backward passes before each step, all but the last of which are lost.

    Their losses add up to one mean of the criterion, as in gradient accumulation. Each of the passes of SAM or of
    adversarial training has the whole of it.
    """
    scales = [scale_of(one, case.course.loss) for one in case.facts.criteria if one.is_training]
    is_divided = len(scales) == 1 and scales[0] is not None and abs(scales[0] - 1) < _ALIKE
    for one in case.facts.optimizers if is_divided and len(case.facts.optimizers) == 1 else ():
        if one.cycles >= threshold and one.discarded >= _MOSTLY * one.cycles:
            words = f"the gradients are cleared before every backward pass, so {one.optimizer}"
            words += f" uses only the last of several in {_share(one.discarded, one.cycles)}"
            yield TrainingSighting(None, 1, one.discarded, words, one.made, hint=_ONCE)


@training_rule("MS715", "cut-off-from-the-loss", WARNING, FEW_STEPS, Link.BOOKKEEPING)
def severed(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A layer runs, but its parameters never receive a gradient.

    Measure: steps without a gradient
    Source: certain: no backward pass produced one
    Hint: look for .detach(), .data, .item(), NumPy or torch.no_grad() between this layer and the loss
    Why: layers without a gradient keep their initial values, although training seems to work
    Error if: no parameter of its optimizer receives a gradient
    """
    if case.course.steps < threshold:
        return
    yield from case.told(DETACHED) if not case.progress.learns or any(case.told(COLLAPSED)) else ()
    reached = _reached(case)
    cut = [
        (one, facts)
        for one, facts in case.stated()
        if one.optimizer and facts.requires_grad and facts.has_run and not facts.has_gradient
        if not any(norm is not None for norm in one.series.grad_norm)  # layers may be trained in turn
        if not (facts.is_unused and one.optimizer in reached)  # MS716
    ]
    if not cut:
        return
    (last, facts), *others = [row for row in cut if len(row[0].shape) > 1][::-1] or cut[::-1]
    how = "its layer runs under no_grad()" if facts.is_severed else "it stops between its layer and the loss"
    is_teacher = facts.is_severed and last.model not in {one.model for one in case.facts.models}
    if is_teacher:
        how = f"{last.model} runs under no_grad() only, as a teacher does, but is in the optimizer"
    words = f"never receives a gradient: {how}{case.beside([one for one, _ in others[::-1]])}"
    severity, hint = WARNING if last.optimizer in reached else ERROR, _TEACHER if is_teacher else None
    yield TrainingSighting(last, 0, len(cut), words, case.called(last.model), severity, hint=hint)


def _reached(case: Case) -> set[str]:
    """Return the optimizers of which a parameter ever had a gradient."""
    return {one.optimizer for one, facts in case.stated() if facts.has_gradient or any(one.series.grad_norm)}


@training_rule("MS716", "unused-parameters", WARNING, FEW_STEPS, Link.BOOKKEEPING, is_alone=True)
def unused(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An optimizer holds parameters that are never used.

    Measure: steps in which the layer is not called, or no loss depends on its output, and it gets no gradient
    Source: certain: the parameter receives no gradient, and no tensor of the loss is computed from it
    Hint: use the layer and its output in forward and in the loss, or remove it
    Why: an unused layer wastes memory, and often its call in forward was forgotten
    """
    if case.course.steps < threshold:
        return
    held = [(one, facts) for one, facts in case.stated() if one.optimizer and facts.requires_grad]
    held = [(one, facts) for one, facts in held if not (facts.has_gradient or facts.has_changed)]
    reached = _reached(case)
    idle = [one for one, facts in held if not facts.has_run]
    ignored = [one for one, facts in held if facts.is_unused and facts.has_run and one.optimizer in reached]
    for rows, how, link in (
        (idle, "is never used: its layer does not run, and it receives no gradient", None),
        # It causes nothing, and comes last
        (ignored, "is not used: its layer runs, but the loss does not depend on its output", Link.SPEED),
    ):
        if rows:
            yield TrainingSighting(rows[0], 0, len(rows), how + case.beside(rows[1:]), link=link)
    if idle:
        return
    for one in _holding_strangers(case, threshold, are_most=False):
        count = counted(one.strangers, "parameter")
        words = f"{one.optimizer} holds {count} of layers that never run and receive no gradient"
        yield TrainingSighting(None, 0, one.strangers, words, one.made)


@training_rule("MS765", "nothing-loaded", ERROR, 0, Link.BOOKKEEPING)
def nothing_loaded(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """load_state_dict(strict=False) has loaded nothing: no parameter name matches.

    Measure: matching parameter names
    Source: certain: no name in the loaded state dict is a parameter name of the model
    Hint: rename the keys to match the model, such as by stripping 'module.' or 'model.', and load with strict=True
    Why: the model trains from random values, and strict=False hides it
    """
    return case.told(UNLOADED)


@training_rule("MS745", "step-by-scaled-gradients", ERROR, 3, Link.BOOKKEEPING)
def steps_scaled(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """An optimizer steps with gradients that are still multiplied by a gradient scaler.

    Measure: steps after the backward pass of a scaled loss, without scaler.step or scaler.unscale_
    Source: certain: nothing has divided the gradients by the scale; their norms tell if the script has
    Hint: call scaler.step(optimizer) instead of optimizer.step(), and clip only after scaler.unscale_(optimizer)
    Why: each step is too large by the factor of the scaler, often 65,536
    """
    for one in case.facts.optimizers:
        if one.cycles >= threshold and one.scaled >= _MOSTLY * one.cycles:
            words = f"{one.optimizer} steps with the gradients of a scaled loss, in"
            words += f" {_share(one.scaled, one.cycles)}: neither scaler.step nor scaler.unscale_ was called"
            yield TrainingSighting(None, 1, one.scaled, words, one.made)


@training_rule("MS763", "average-never-updated", WARNING, 2, Link.BOOKKEEPING)
def left_behind(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A copy of the model, for validation, averaging or targets, is never updated, or its batch norms are not.

    Measure: passes without gradients, with steps of the model in between; 500 for a copy with 'target' in its name
    Source: certain: its values are bit-identical to those of the model before the first step
    Hint: call averaged.update_parameters(model) after each optimizer.step(), or validate the model itself; update a
        target network by target.load_state_dict(model.state_dict())
    Why: the copy that is validated and saved, or that computes the targets, is untrained
    """
    yield from (replace(one, hint=_COPIED) for one in case.told(STALE_NORMS))
    for one in case.facts.models:
        for label, n_runs, n_judged, is_average in one.copies:
            is_its_place = n_judged >= threshold and not any(one.evaluated)
            if case.course.steps >= FEW_STEPS and n_runs >= threshold and (is_average or is_its_place):
                ran = f"it ran {counted(n_runs, 'time')} between the steps"
                words = f"{label} is bit-identical to {one.model} before the first step, although {ran}"
                yield TrainingSighting(None, 0, n_runs, words, one.called)


@training_rule("MS746", "ranks-disagree", ERROR, 1e-6, Link.BOOKKEEPING)
def ranks_disagree(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """Ranks that should hold the same weights hold different ones.

    Measure: relative difference between the weights of two ranks
    Source: certain: with DistributedDataParallel, or averaged gradients, all copies stay bit-identical
    Hint: make every rank start from the same weights, average the gradients, and take the same steps
    Why: each rank trains its own model, and only one of them is saved
    """
    found = case.facts.ranks.disagreement if case.facts.ranks is not None else None
    if found is not None:
        place = found.model, found.name
        row = next((one for one in case.course.parameters if (one.model, one.name) == place), None)
        yield TrainingSighting(row, found.step, found.distance, found.message, found.place, hint=found.cure)


@training_rule("MS718", "trained-in-evaluation-mode", WARNING, FEW_STEPS, Link.BOOKKEEPING)
def trained_in_evaluation(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A model with dropout or batch norm is trained in evaluation mode.

    Measure: steps in a row in evaluation mode, until the end
    Source: certain: .training was False in every pass with gradients
    Hint: call model.train() before the steps, and again after every evaluation
    Why: dropout is off, and batch norm normalises by statistics that are never updated
    """
    trained = {one.model for one, facts in case.stated() if one.optimizer and facts.has_gradient}
    models = [one for one in case.facts.models if one.model in trained]
    is_another = any(one.evaluation_since is None for one in models)
    for one in models:
        since = one.evaluation_since
        if since is None or not one.frozen_modes or case.course.steps - since < threshold:
            continue
        when = f"trained in evaluation mode since step {since}" if since else "never trained in training mode"
        words = f"{one.model} is {when}: its {' and '.join(one.frozen_modes)} layers behave as in evaluation"
        hint = f"call its train() before the steps{_FIXED}" if is_another else None
        yield TrainingSighting(None, since, case.course.steps - since, words, one.called, hint=hint)


@training_rule("MS743", "validated-in-training-mode", WARNING, 3, Link.BOOKKEEPING)
def validated_in_training(case: Case, threshold: float) -> Iterator[TrainingSighting]:
    """A model with dropout or batch norm is validated in training mode.

    Measure: losses or predictions without gradients, all in training mode
    Source: certain: .training was True in all these passes
    Hint: call model.eval() before the validation, and model.train() after it
    Why: dropout makes the result noisy, and the validation images change the running statistics of batch norm
    """
    held = {one.model for one in case.course.parameters if one.optimizer}
    for one in case.facts.models:
        in_training, in_evaluation = one.evaluated
        if one.model in held and in_training >= threshold and not in_evaluation and one.loose_modes:
            words = f"{one.model} is validated in training mode, in {in_training:,} passes: its"
            words += f" {' and '.join(one.loose_modes)} layers behave as in training"
            yield TrainingSighting(None, 0, in_training, words, one.called)
        for event in case.course.events:
            is_own = event.kind == ACTIVE and event.message.startswith(f"{one.model}: ")
            if is_own and one.validated and not one.is_sampled:
                yield TrainingSighting(None, event.step or 0, None, event.message, hint=_SWITCH_OFF)


_SWITCH_OFF = (
    "pass training=self.training to functional.dropout, and a dropout_p of 0 unless self.training to "
    "scaled_dot_product_attention"
)
