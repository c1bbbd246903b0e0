"""MS3xx: gradients."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from modelscope_cli.records.check_evidence import Backward, Evidence
from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.grads import (
    EXPLODING,
    EXPLODING_SOURCE,
    LOST,
    SCALE,
    VANISHING,
    VANISHING_SOURCE,
    ParameterGradient,
    is_judged,
    steady_fall,
    where_zero,
)
from modelscope_cli.records.naming import counted, label_of, rounded
from modelscope_cli.rules.activations import FORWARD, foreign_statistics, idle_blocks, is_inside
from modelscope_cli.rules.rule import Sighting, rule

Weight = tuple[ParameterGradient, float]  # with the norm of its gradient relative to the one at the output

_BACKWARD = frozenset({"backward"})


def _backward(evidence: Evidence) -> Backward:
    assert evidence.backward is not None
    return evidence.backward


def _no_gradient_at_all(evidence: Evidence, threshold: float) -> str | None:
    norm = _backward(evidence).output_grad_norm
    if norm == 0:
        return "the gradient of the loss at the output is zero"
    return None if norm < float("inf") else "the gradient at the output is not finite"


def _no_vanishing_to_judge(evidence: Evidence, threshold: float) -> str | None:
    if _backward(evidence).is_partial:
        return "one synthetic object reaches only a few of the heads of a detection model"
    return _no_gradient_at_all(evidence, threshold)


@rule("MS301", "non-finite-gradients", ERROR, 0, needs=_BACKWARD)
def _non_finite(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Gradients are NaN or infinite although the forward pass is finite.

    Measure: NaN or infinite values in one gradient
    Source: torch.autograd.detect_anomaly, which raises at the first NaN; SageMaker Debugger, ExplodingTensor
    Hint: the derivative of the operation after this layer is infinite: sqrt(0), norm(0), log(0), x / 0
    Why: one optimizer step with such a gradient makes the weights NaN permanently
    """
    backward = _backward(evidence)
    broken = [row for row in backward.parameters if row.nan_count + row.inf_count > threshold]
    arrived = [row for row in backward.activations if row.nan_count + row.inf_count]
    if arrived:  # the last in execution order is the first in the backward pass
        last = max(arrived, key=lambda row: row.order)
        n = last.nan_count + last.inf_count
        words = f"{n} NaN or infinite values in the gradient at its output; later layers have finite ones"
        if n > threshold:
            yield Sighting(label_of(last), n, f"{words}; affected: {counted(len(broken), 'parameter')}")
        return
    for row in broken:
        n = row.nan_count + row.inf_count
        yield Sighting(
            row.layer or None, n, f"the gradient of {row.name} contains {n} NaN or infinite values"
        )


def _weights(backward: Backward) -> Iterator[Weight]:
    """Return weights with their gradient's norm relative to the one at the output."""
    if not 0 < backward.output_grad_norm < float("inf"):
        return
    for row in backward.parameters:
        if row.grad_norm is not None and is_judged(row.shape):
            yield row, row.grad_norm / backward.output_grad_norm


@rule(
    "MS302",
    "vanishing-gradients",
    WARNING,
    VANISHING,
    needs=_BACKWARD,
    excuse=_no_vanishing_to_judge,
    follows=("MS202", "MS604"),
    measure=SCALE,
    source=f"{VANISHING_SOURCE}; our measurement: with an even fall of {LOST:g} SGD fails; torchvision: at most 81",
)
def _vanishing(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """Almost no gradient reaches a weight.

    Hint: modelscope grads MODEL   draws the gradients by depth; add a norm or residual connections, or change the
        initialisation
    Why: the weights before it hardly change, however long training lasts
    Error if: the gradients of all weights up to some layer are exactly zero
    """
    backward, idle = _backward(evidence), idle_blocks(evidence)  # which MS205 names
    judged = tuple(row for row in backward.parameters if not is_inside(row.name, idle))
    backward = replace(backward, parameters=judged)
    first = next(_weights(backward), None)
    found = None
    for run in _runs(backward, lambda ratio: ratio < threshold):
        # Zero back to the first weight: the gradient is cut off. In a side branch it may be intended: in the last
        # block of a transformer only the class token has an effect.
        is_cut = run[-1] == first and run[-1][1] == 0
        found = _describe(run, min(ratio for _, ratio in run))
        cause = where_zero(judged, backward.activations) if any(ratio == 0 for _, ratio in run) else ""
        message = f"{found.message}: {cause}" if cause else found.message
        yield replace(found, severity=ERROR if is_cut else None, message=message)
    total, words = steady_fall(judged)
    if found is None and first and total > LOST and not evidence.is_fresh:
        yield Sighting(first[0].layer or None, first[1], words)


@rule(
    "MS303",
    "exploding-gradients",
    WARNING,
    EXPLODING,
    needs=_BACKWARD | FORWARD,
    excuse=lambda seen, threshold: _no_gradient_at_all(seen, threshold) or foreign_statistics(seen),
    measure=SCALE,
    source=EXPLODING_SOURCE,
)
def _exploding(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    """The gradient of a weight is far larger than the one at the output.

    Hint: modelscope grads MODEL --clip-norm 1.0   shows the effect of clipping; check the scale of the weights
    Why: a single step changes these weights far too much; the loss jumps or becomes NaN
    """
    for run in _runs(_backward(evidence), lambda ratio: ratio > threshold):
        yield _describe(run, max(ratio for _, ratio in run))


def _runs(backward: Backward, is_wrong: Callable[[float], bool]) -> Iterator[list[Weight]]:
    """Yield runs of consecutive wrong weights, from the output side, where the backward pass begins."""
    for wrong, run in groupby(reversed(list(_weights(backward))), key=lambda weight: is_wrong(weight[1])):
        if wrong:
            yield list(run)


def _describe(run: list[Weight], worst: float) -> Sighting:
    first, ratio = run[0]
    n = len(run) - 1
    if not any(ratio for _, ratio in run) and n:
        message = f"the gradients of {first.name} and {counted(n, 'earlier layer')} are exactly zero"
        return Sighting(first.layer or None, worst, message)
    words = f"is {rounded(ratio)} times the one at the output" if ratio else "is exactly zero"
    more = f"; also in {n} before it, up to {rounded(worst)}x" if n else ""
    return Sighting(first.layer or None, worst, f"the gradient of {first.name} {words}{more}")
