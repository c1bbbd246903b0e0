"""What `grads` returns, and when a gradient counts as vanishing or exploding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Annotated, ClassVar

from modelscope_cli.records.display import Row, counter, figure, hidden, shape, share, words
from modelscope_cli.records.naming import label_of, rounded, some
from modelscope_cli.records.run import HookReport, Record, Shape
from modelscope_cli.records.stats import BatchNormDrift

# Norms of gradients are measured against the norm of the gradient that the loss sends into the model's output: then
# neither the scale of the loss nor a confident prediction, whose gradients are all small, matters. An unknown
# norm is taken as 1, about that of a mean loss.
#
# SageMaker Debugger calls a gradient vanishing below 1e-7; float32 has 2**-23, about 1.2e-7, as its resolution.
VANISHING = 1e-7
# Our measurement over untrained torchvision networks with norms, in train mode: where every block adds as much
# as it gets, deeper is larger. ResNet-18 has 60, ResNet-152 4e4, FCN-ResNet-101 7e4, and all train as they are.
EXPLODING = 1e6

SCALE = "norm of a weight's gradient, divided by the norm of the gradient at the model's output"
VANISHING_SOURCE = "SageMaker Debugger, VanishingGradient: 1e-7; the resolution of float32 is 1.2e-7"
EXPLODING_SOURCE = (
    "our measurement: at most 7e4 in untrained torchvision networks, the most in the deepest; networks without "
    "norms that fail to train start at 1e3, and are recognised by the size of their scores (MS206)"
)


def is_judged(shape: Sequence[int]) -> bool:
    """Tell whether a gradient is judged: that of a weight. Biases and scales of norms have other magnitudes, and
    the gradient of a bias before a norm is zero except for rounding."""
    return len(shape) > 1


def mark(norm: float, reference: float) -> str:
    """Return `zero`, `vanishing`, `exploding`, or an empty string for a gradient that is none of them.

    Args:
        norm: of the gradient of a weight or an activation; finite.
        reference: the norm at the model's output; if 0, nothing is detected, and if not finite, only `zero`.
    """
    if reference == 0:
        return ""
    if norm == 0:
        return "zero"
    if not reference < math.inf:
        return ""
    if norm < VANISHING * reference:
        return "vanishing"
    return "exploding" if norm > EXPLODING * reference else ""


NEVER_CALLED = "never called"
"""The `problem` of a parameter without a gradient whose layer the forward pass did not call."""


@dataclass(frozen=True, slots=True)
class LossInfo:
    """The scalar that was differentiated.

    Attributes:
        name, target: in words.
        value: mean over the passes.
        classes: the target class of each image of the last pass; empty if there are none.
    """

    name: str
    value: float
    target: str
    classes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ParameterGradient(Row):
    """One row of `grads`: the gradient of one parameter; with several passes, their mean.

    Figures are of the finite values, after clipping; None where no gradient arrived.

    Attributes:
        layer, type: the layer that owns the parameter.
        order: of that layer's first call, or of the nearest one around it that is called.
        grad_norm, weight_norm: Euclidean; `grad_to_weight` is their ratio, None for a weight of zero.
        norm_before_clip: None where nothing was clipped. `clipped_fraction`: share of elements clipped.
        noise: standard deviation of the gradient between passes, over all elements: the root of the trace of its
            covariance (n - 1), before `clip` and `clip_norm`. `snr`: norm of the mean gradient / noise. None with
            one pass.
        mark: `frozen`, `unused` (no gradient arrived), `non-finite`, `zero`, `vanishing`, `exploding`, or empty.
        problem: why there are no figures.
    """

    name: Annotated[str, words("parameter", rank=0)]
    layer: str
    type: Annotated[str, words(is_shown=False)]
    order: Annotated[int, hidden()]
    shape: Annotated[Shape, shape(rank=7)]
    numel: Annotated[int, hidden()]
    trainable: Annotated[bool, hidden()]
    grad_norm: Annotated[float | None, figure("|g|", rank=0, key="norm")] = None
    grad_mean: Annotated[float | None, figure(rank=6, key="mean")] = None
    grad_std: Annotated[float | None, figure(rank=5, key="std")] = None
    grad_min: Annotated[float | None, figure(rank=8, key="min")] = None
    grad_max: Annotated[float | None, figure(rank=8, key="max")] = None
    grad_abs_max: Annotated[float | None, figure("max |g|", rank=3, key="abs_max")] = None
    zero_fraction: Annotated[float | None, share(rank=0, key="zero")] = None
    nan_count: Annotated[int, counter("NaN", key="nan")] = 0
    inf_count: Annotated[int, counter(key="inf")] = 0
    weight_norm: Annotated[float | None, figure("|w|", rank=4)] = None
    grad_to_weight: Annotated[float | None, figure("|g|/|w|", key="ratio")] = None
    norm_before_clip: Annotated[float | None, figure("|g| before", rank=0, key="before")] = None
    clipped_fraction: Annotated[float | None, share(rank=0, key="clipped")] = None
    noise: Annotated[float | None, figure(rank=2)] = None
    snr: Annotated[float | None, figure("|g|/noise")] = None
    mark: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ActivationGradient(Row):
    """One row of `grads`: the gradient that arrives at one output tensor of one call.

    Attributes:
        grad_norm: Euclidean, of one pass; with several passes, the root of the mean square.
        is_zero: whether only zeros left the layer here, in all passes.
        mark, problem: as in `ParameterGradient`.
    """

    name: str
    type: Annotated[str, words(rank=0)]
    order: Annotated[int, hidden()]
    call: int
    output: str
    shape: Annotated[Shape, shape(rank=9)]
    grad_norm: Annotated[float | None, figure("|g|", rank=0, key="norm")] = None
    grad_mean: Annotated[float | None, figure(rank=6, key="mean")] = None
    grad_std: Annotated[float | None, figure(rank=5, key="std")] = None
    grad_min: Annotated[float | None, figure(rank=8, key="min")] = None
    grad_max: Annotated[float | None, figure(rank=8, key="max")] = None
    grad_abs_max: Annotated[float | None, figure("max |g|", rank=3, key="abs_max")] = None
    nan_count: Annotated[int, counter("NaN", key="nan")] = 0
    inf_count: Annotated[int, counter(key="inf")] = 0
    mark: str = ""
    problem: str | None = None
    is_zero: bool = False


@dataclass(frozen=True, slots=True)
class GradTotals:
    """Over all parameters of the model, whichever are shown.

    Attributes:
        grad_norm: global norm after clipping; `norm_before_clip` without it, None where nothing was clipped.
        clipped_fraction: share of the elements that were clipped.
        output_grad_norm: norm of the gradient of the loss at the output of the model, root mean square over
            passes: the reference for vanishing gradients.
    """

    grad_norm: float
    norm_before_clip: float | None
    clipped_fraction: float | None
    trainable_params: int
    frozen_params: int
    output_grad_norm: float


@dataclass(frozen=True, slots=True)
class ClipInfo:
    """`kind` is `value`, `norm` or `activations`."""

    kind: str
    value: float


@dataclass(frozen=True, slots=True)
class GradsRecord(Record):
    """What `grads` returns.

    Attributes:
        parameters, activations: in execution order.
        mode: `eval` or `train`; `batch_norm` has rows in train mode only.
        passes: backward passes whose gradients were taken; `images` in all of them.
        out_dir: where the report was written, with `files` in it; None where nothing was.
    """

    document: ClassVar[str] = "grads"
    loss: LossInfo
    parameters: tuple[ParameterGradient, ...]
    activations: tuple[ActivationGradient, ...]
    totals: GradTotals
    clip: ClipInfo | None
    mode: str
    passes: int
    images: int
    batch_norm: tuple[BatchNormDrift, ...] = ()
    not_called: tuple[str, ...] = ()
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()


_STEEP, _DEEP = 3.0, 4  # times from a layer to the one before it, in at least so many
LOST = 1e4  # a fall over all layers from which a network of sigmoids did not learn with SGD


def steady_fall(parameters: Sequence[ParameterGradient]) -> tuple[float, str]:
    """Return how many times the gradient falls towards the input, and that in words, if in most of the layers it
    does so steeply; else 1."""
    rows = [row for row in parameters if row.grad_norm and is_judged(row.shape)]
    norms = [(row.grad_norm or 0.0) if row.norm_before_clip is None else row.norm_before_clip for row in rows]
    steps = [after / before for before, after in pairwise(norms)]
    total, times = math.prod(steps), median(steps or [1.0])
    if len(rows) < _DEEP or total <= _STEEP ** (_DEEP - 1) or times < _STEEP:
        return 1.0, ""
    ends = f"from {rows[-1].layer} to {rows[0].layer}"
    return total, f"|g| falls {rounded(total)}x {ends}, about {rounded(times)}x a layer"


def zero_layers(parameters: Sequence[ParameterGradient]) -> list[str]:
    return [row.layer for row in parameters if row.weight_norm == 0 and row.name == f"{row.layer}.weight"]


def where_zero(parameters: Sequence[ParameterGradient], activations: Sequence[ActivationGradient]) -> str:
    """Say in words which layers pass on nothing, so that no gradient reaches what is before them or after them."""
    zero = zero_layers(parameters)
    weighted = {row.layer for row in parameters if is_judged(row.shape)}
    # Of a row of layers that output zeros, only the first can be the cause.
    starts = zip(activations, (None, *activations), strict=False)
    dead = [row for row, before in starts if row.is_zero and not (before and before.is_zero)]
    dead = [row for row in dead if row.name not in zero]
    starved = [label_of(row) for row in dead if row.name in weighted]
    silent = [f"{label_of(row)} ({row.type})" for row in dead if row.name not in weighted]
    if not zero and not dead:
        reached = {row.name for row in activations if row.grad_norm}
        cut = (row.layer for row in reversed(parameters) if row.grad_norm == 0 and is_judged(row.shape))
        starved = [layer for layer in cut if layer in reached][:1]
    ends = ("input", starved), ("output", silent)
    words = [f"the weights of {some(zero)} are zero"] * bool(zero)
    return " and ".join(words + [f"the {end} of {some(names)} is zero" for end, names in ends if names])
