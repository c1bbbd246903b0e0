"""MS3xx: gradients."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby

from modelscope_cli.records.check import ERROR, WARNING
from modelscope_cli.records.check_evidence import Backward, Evidence
from modelscope_cli.records.grads import (
    EXPLODING,
    EXPLODING_SOURCE,
    SCALE,
    VANISHING,
    VANISHING_SOURCE,
    ParameterGradient,
    is_judged,
)
from modelscope_cli.records.naming import counted, label_of
from modelscope_cli.rules.rule import Rule, Sighting

Weight = tuple[ParameterGradient, float]  # with the norm of its gradient relative to the one at the output

_BACKWARD = frozenset({"backward"})


def _backward(evidence: Evidence) -> Backward:
    assert evidence.backward is not None
    return evidence.backward


def _non_finite(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
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
        yield Sighting(row.layer or None, n, f"the gradient of {row.name} holds {n} NaN or infinite values")


def _weights(backward: Backward) -> Iterator[Weight]:
    """Return weights with their gradient's norm relative to the one at the output."""
    if not 0 < backward.output_grad_norm < float("inf"):
        return
    for row in backward.parameters:
        if row.grad_norm is not None and is_judged(row.shape):
            yield row, row.grad_norm / backward.output_grad_norm


def _vanishing(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    first = next(_weights(_backward(evidence)), None)
    for run in _runs(_backward(evidence), lambda ratio: ratio < threshold):
        # Zero back to the first weight: the gradient is cut off. In a side branch it may be intended: in the last
        # block of a transformer only the class token has an effect.
        is_cut = run[-1] == first and run[-1][1] == 0
        yield replace(_describe(run, min(ratio for _, ratio in run)), severity=ERROR if is_cut else None)


def _exploding(evidence: Evidence, threshold: float) -> Iterator[Sighting]:
    for run in _runs(_backward(evidence), lambda ratio: ratio > threshold):
        yield _describe(run, max(ratio for _, ratio in run))


def _runs(backward: Backward, is_wrong: Callable[[float], bool]) -> Iterator[list[Weight]]:
    """Yield runs of consecutive wrong weights, from the output side, where the backward pass begins."""
    for wrong, run in groupby(reversed(list(_weights(backward))), key=lambda weight: is_wrong(weight[1])):
        if wrong:
            yield list(run)


def _describe(run: list[Weight], worst: float) -> Sighting:
    first, ratio = run[0]
    words = f"is {ratio:.2g} times the one at the output" if ratio else "is exactly zero"
    more = f"; also in {len(run) - 1} before it, up to {worst:.2g}x" if len(run) > 1 else ""
    return Sighting(first.layer or None, worst, f"the gradient of {first.name} {words}{more}")


def _no_gradient_at_all(evidence: Evidence, threshold: float) -> str | None:
    norm = _backward(evidence).output_grad_norm
    if norm == 0:
        return "the gradient at the output is zero: the prediction is already certain"
    return None if norm < float("inf") else "the gradient at the output is not finite"


def _no_vanishing_to_judge(evidence: Evidence, threshold: float) -> str | None:
    if _backward(evidence).is_partial:
        return "one synthetic object reaches only a few of the heads of a detection model"
    return _no_gradient_at_all(evidence, threshold)


RULES = (
    Rule(
        code="MS301",
        name="non-finite-gradients",
        severity=ERROR,
        sentence="gradients are NaN or infinite although the forward pass is finite",
        threshold=0,
        measure="NaN or infinite values in one gradient",
        source="torch.autograd.detect_anomaly, which raises at the first NaN; SageMaker Debugger, ExplodingTensor",
        hint="the derivative of the operation after this layer is infinite: sqrt(0), norm(0), log(0), x / 0",
        needs=_BACKWARD,
        judge=_non_finite,
    ),
    Rule(
        code="MS302",
        name="vanishing-gradients",
        severity=WARNING,
        sentence="almost no gradient arrives at a weight",
        threshold=VANISHING,
        measure=SCALE,
        source=VANISHING_SOURCE,
        hint=(
            "modelscope grads MODEL   draws the gradients by depth; add a norm or residual connections, or "
            "change the initialisation"
        ),
        needs=_BACKWARD,
        judge=_vanishing,
        excuse=_no_vanishing_to_judge,
    ),
    Rule(
        code="MS303",
        name="exploding-gradients",
        severity=WARNING,
        sentence="the gradient of a weight is far larger than the one at the output",
        threshold=EXPLODING,
        measure=SCALE,
        source=EXPLODING_SOURCE,
        hint=(
            "modelscope grads MODEL --clip-norm 1.0   shows the effect of clipping; check the scale of the "
            "weights"
        ),
        needs=_BACKWARD,
        judge=_exploding,
        excuse=_no_gradient_at_all,
    ),
)
