"""Find the first non-finite value of a step, from the trace that `finite_flags` keeps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from modelscope_cli.hooks.fetch import Deferred, joined
from modelscope_cli.records import training_facts as births
from modelscope_cli.records.training_facts import Birth
from modelscope_cli.watching import finite_flags
from modelscope_cli.watching.finite_flags import Range, Suspects, gradient_norms, is_finite, range_of, read
from modelscope_cli.watching.forward_pass import ForwardPass
from modelscope_cli.watching.losses import LossWatch
from modelscope_cli.watching.model_registry import ModelRegistry, WatchedModel, is_wrapper, peel

_SAMPLE = 1 << 15  # of a parameter


@dataclass(frozen=True, slots=True)
class _Mark:
    """A tensor: its role (`what`), its layer, and the call."""

    what: str
    name: str
    call: int
    range: Range


def check_gradients(registry: ModelRegistry, losses: LossWatch) -> None:
    """Look back in the models whose gradients, or whose loss, are not finite after a backward pass.

    If no model is followed and the loss is on an accelerator, that is found out after the step.
    """
    models = [
        (model, root)
        for model in registry.models
        if (root := model.root()) is not None and (model.flags.trace or not model.is_followed)
    ]
    if losses.is_computed_later and not any(model.is_followed for model, _ in models):
        return
    nothing: Deferred[list[float]] = Deferred((), list)
    # Of models that are not followed after the step, for all parameters together
    norms = [gradient_norms(root) if model.is_followed else nothing for model, root in models]
    parts: list[Deferred[Any]] = [losses.add_up(), *norms]
    _, *fetched = joined(parts)()
    for (model, root), own in zip(models, fetched, strict=True):
        is_finite = not model.is_followed or model.flags.see_gradients(root, own)
        if not (is_finite and losses.is_finite):
            look_back(model, registry)


def see_gradients(models: Sequence[WatchedModel]) -> None:
    """Check the gradients of models that are not followed, after a step."""
    for model in models:
        if (root := model.root()) is not None:
            model.flags.see_gradients(root)


def look_back(model: WatchedModel, registry: ModelRegistry) -> None:
    """Check the traced passes of a model, and its parameters, before a step changes them."""
    marks = list(_marks(model, registry))
    ranges = read([mark.range for mark in marks])
    first = None
    for mark, ends in zip(marks, ranges, strict=True):
        is_mask = mark.what == births.INPUT and ends[1] < math.inf  # an input that goes down to -inf
        if first is None and not is_mask and not is_finite(ends):
            first = mark.what, mark.name, mark.call
    order = {mark.name: place for place, mark in enumerate(marks) if mark.what == births.OUTPUT}
    model.suspects = Suspects(first, order)


def _marks(model: WatchedModel, registry: ModelRegistry) -> Iterator[_Mark]:
    root = model.root()
    for parameter_name, parameter in root.named_parameters() if root is not None else ():
        if (ends := range_of(parameter, _SAMPLE)) is not None:
            yield _Mark(births.PARAMETER, parameter_name, 0, ends)
    now = ForwardPass()
    for entry in model.flags.trace:
        kind, call = births.OUTPUT, 0
        name: str | None = None
        if entry.what == finite_flags.BEGUN:
            now = ForwardPass()
        elif entry.what == finite_flags.CALLED:
            name, call = entry.who
        elif (module := entry.who()) is None:
            continue
        elif entry.what == finite_flags.ENTERED:
            around = now.open[-1] if now.open else None
            if around is None or around.name is None:
                kind, name = births.INPUT, ""
            else:
                kind, name, call = births.BETWEEN, around.name, around.index
            now.enter(module, None if is_wrapper(module) else registry.name_in(model, module))
        elif (call_left := now.leave(module)) is not None and (
            call_left.is_innermost or not is_wrapper(module)
        ):
            name, call = registry.name_in(model, peel(module)), call_left.index
        if name is not None:
            yield from (_Mark(kind, name, call, ends) for ends in entry.ranges)


def is_harmless(model: WatchedModel, registry: ModelRegistry) -> bool:
    """Tell whether a trace is full and all of it is finite."""
    if len(model.flags.trace) <= finite_flags.MOST:
        return False
    look_back(model, registry)
    return model.suspects is None or model.suspects.first is None


def find_birth(
    trained: Sequence[WatchedModel], others: Sequence[WatchedModel], step: int, loss: float | None
) -> Birth | None:
    """Return the first non-finite value of a step; None if the loss and all gradients are finite.

    Args:
        trained: the models whose weights the step changes; `others`: those that the loss may depend on.
        loss: of the step; None if unknown.
    """
    is_loss_finite = loss is None or math.isfinite(loss)
    spoilt = {model.label: names for model in trained if (names := _spoilt(model))}
    if is_loss_finite and not spoilt:
        return None
    for model in (*trained, *others):
        if model.suspects is not None and model.suspects.first is not None:
            kind, name, call = model.suspects.first
            if kind == births.PARAMETER and model.has_missed:  # since an unknown step
                return Birth(births.UNSEEN, step, model.label, "", 0)
            return Birth(
                kind, max(step - 1, 0) if kind == births.PARAMETER else step, model.label, name, call
            )
    if any(not model.is_followed for model in trained):
        return Birth(births.UNSEEN, step, trained[0].label, "", 0)
    if not is_loss_finite:
        traced = [model for model in (*trained, *others) if model.flags.trace]
        return Birth(births.LOSS, step, traced[0].label, "", 0) if traced else None
    model = next(one for one in trained if one.label in spoilt)
    return Birth(births.GRADIENT, step, model.label, _nearest_to_loss(model, spoilt[model.label]), 0)


def _nearest_to_loss(model: WatchedModel, parameters: list[str]) -> str:
    """Return the first parameter of the layer that ran last, which passes its gradient to those before it."""
    places = {} if model.suspects is None else model.suspects.order
    return max(parameters, key=lambda name: places.get(name.rpartition(".")[0], -1))


def _spoilt(model: WatchedModel) -> list[str]:
    """Return the parameters whose gradient was not finite, and that are not finite after the step."""
    names, root = model.flags.spoilt, model.root()
    if not names or root is None:
        return []
    parameters = dict(root.named_parameters())
    is_broken = any(name in parameters and not bool(torch.isfinite(parameters[name]).all()) for name in names)
    return names if is_broken else []
