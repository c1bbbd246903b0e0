"""Methods that explain by following the whole pass with their own rules."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from modelscope_cli.analysis.explaining.dataflow import Dataflow
from modelscope_cli.analysis.explaining.layer import Map
from modelscope_cli.analysis.explaining.scored import Scored, UnfitError, not_connected
from modelscope_cli.hooks.fetch import fetch

# Piecewise linear functions without an offset: their gradient times their input is their relevance.
_NAMES = (
    "relu relu_ max_pool2d avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d mean sum add add_ __add__ __iadd__ "
    "__radd__ cat concat linear dropout feature_dropout flatten view reshape contiguous permute transpose squeeze "
    "unsqueeze clone pad chunk split unbind __getitem__ to float"
)
_IN_PROPORTION = frozenset(_NAMES.split())
_CONV = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


class _Rules(Dataflow):
    """Runs a pass whose gradient times input is relevance."""

    def __init__(self, image: Tensor) -> None:
        super().__init__(image)
        # The input of the flat rule instead of the image; None before the first convolution
        self.ones: Tensor | None = None
        self.unknown = ""  # the first function that no rule covers; empty if there is none
        self._convolved: Any = WeakTensorKeyDictionary()  # output of a convolution -> its arguments

    def compute(
        self, function: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        called: dict[str, Any] | None = None
        if function == "conv2d":
            convolved = called = {**dict(zip(_CONV, args, strict=False)), **kwargs}
        elif function == "batch_norm":
            norm = {**dict(zip(_NORM, args, strict=False)), **kwargs}
            convolved = self._convolved.get(norm["input"])
            called = None if convolved is None else _folded(convolved, norm)
        if called is not None:
            with torch.no_grad():
                output = func(*args, **kwargs)
            output = self._convolve(output, called)
            if function == "conv2d":
                self._convolved[output] = called
            return output
        output = func(*args, **kwargs)
        if isinstance(output, Tensor) and output.is_floating_point() and function not in _IN_PROPORTION:
            self.unknown = self.unknown or function
        return output

    def _convolve(self, output: Tensor, called: dict[str, Any]) -> Tensor:
        """Return `output` with a graph that propagates relevance by the rule of this convolution."""
        image, weight, bias = called["input"], called["weight"], called.get("bias")
        rest = {key: called[key] for key in _CONV[3:] if key in called}
        if self.number_of(image) == 0:
            self.ones = torch.ones_like(image).requires_grad_() if self.ones is None else self.ones
            return _proportional(
                self.ones, output, lambda ones: F.conv2d(ones, torch.ones_like(weight), **rest)
            )

        def positive(image: Tensor) -> Tensor:
            least = None if bias is None else bias.clamp(min=0)
            sums = F.conv2d(image.clamp(min=0), weight.clamp(min=0), least, **rest)
            is_known = image.device.type == "cpu"  # on an accelerator it takes longer to ask than to compute
            if not is_known or image.detach().amin() < 0:
                sums = sums + F.conv2d(image.clamp(max=0), weight.clamp(max=0), **rest)
            return sums

        return _proportional(image, output, positive)


class _Proportional(torch.autograd.Function):
    """Returns `output`, whose gradient is that of `positive(image)` times the ratio of both.
    `positive` runs in the backward pass, and not at all for a convolution whose batch norm is read alone."""

    @staticmethod
    def forward(ctx: Any, image: Tensor, output: Tensor, positive: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.positive = positive
        ctx.save_for_backward(image, output)
        return output.clone()  # a ReLU may write to it

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        image, output = ctx.saved_tensors
        with torch.enable_grad():
            leaf = image.detach().requires_grad_()
            positive = ctx.positive(leaf)
            ratio = output / (positive.detach() + 1e-9)
            relevance = (positive * (gradient * ratio)).sum()  # a gradient given to `grad` imports sympy
        return torch.autograd.grad(relevance, leaf)[0], None, None


def _proportional(image: Tensor, output: Tensor, positive: Callable[[Tensor], Tensor]) -> Tensor:
    made: Tensor = _Proportional.apply(image, output, positive)
    return made


def _folded(called: dict[str, Any], norm: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a convolution that includes the batch norm after it."""
    mean, variance = norm["running_mean"], norm["running_var"]
    scale = (variance + norm.get("eps", 1e-5)).rsqrt()
    scale = scale if norm.get("weight") is None else scale * norm["weight"]
    shift = -mean * scale if norm.get("bias") is None else norm["bias"] - mean * scale
    conv_bias = called.get("bias")
    bias = shift if conv_bias is None else conv_bias * scale + shift
    return {**called, "weight": called["weight"] * scale[:, None, None, None], "bias": bias}


def lrp(scored: Scored, image: Tensor) -> Map:
    """Return the relevance of each pixel, propagated layer by layer through a network of ReLUs.

    Bach et al. 2015; that of biases is lost. The composite of Kohlbrenner et al. 2020, section 3: the flat rule at
    the first convolution, the z+ rule at the others, the epsilon rule, with an epsilon of zero, at linear layers.
    Batch norm is folded into the convolution before it; sums, means and maxima propagate relevance in proportion.
    Relevance is computed as input times gradient of a modified forward pass (Montavon et al. 2019, section 10.3.2):
    a convolution returns z+ times z / z+, where the second factor is detached.
    """
    pixels = image.detach().clone().requires_grad_()
    copy = pixels.clone()
    with _Rules(copy) as rules:
        output = scored.run(copy)
    if rules.unknown:
        message = f"LRP needs a network of ReLUs, but this one calls '{rules.unknown}'"
        raise UnfitError(message, "--method integrated-gradients")
    score = scored.target.score(output)
    leaves = [pixels] if rules.ones is None else [pixels, rules.ones]
    if not score.requires_grad:
        raise not_connected()
    gradients = torch.autograd.grad(score.sum(), leaves, allow_unused=True)
    parts = [
        (leaf.detach() * gradient)[0].float().sum(0)
        for leaf, gradient in zip(leaves, gradients, strict=True)
        if gradient is not None
    ]
    cells = torch.zeros(image.shape[-2:])
    for part in fetch(parts):
        cells += part
    return Map(cells, "relevance by the flat, z+ and epsilon rules")
