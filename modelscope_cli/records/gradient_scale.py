"""What is called a vanishing and an exploding gradient, wherever gradients are judged. Standard library only."""

import math
from collections.abc import Sequence

# Norms of gradients are measured against the norm of the gradient that the loss sends into the model's output: then
# neither the scale of the loss nor a confident prediction, whose gradients are all small, makes a difference. Where
# that norm is not known it is taken for 1, which a loss that is a mean sends about.
#
# SageMaker Debugger calls a gradient vanishing below 1e-7; float32 has 2**-23, about 1.2e-7, as its resolution.
VANISHING = 1e-7
# Own measurement over untrained networks of torchvision with norms, in train mode: where every block adds as much
# as it gets, deeper is larger. ResNet-18 has 60, ResNet-152 4e4, FCN-ResNet-101 7e4, and all train as they are.
EXPLODING = 1e6

SCALE = "times the norm of the gradient at the model's output"
VANISHING_SOURCE = "SageMaker Debugger, VanishingGradient: 1e-7, next to 1.2e-7, the resolution of float32"
EXPLODING_SOURCE = (
    "own measurement: at most 7e4 over untrained networks of torchvision, the most in the deepest"
)


def is_judged(shape: Sequence[int]) -> bool:
    """Tell a weight from what is not judged: biases and scales of norms live on another scale, and a bias in front
    of a norm has no effect, so its gradient is zero but for rounding."""
    return len(shape) > 1


def mark(norm: float, reference: float, vanishing: float = VANISHING, exploding: float = EXPLODING) -> str:
    """Return `zero`, `vanishing`, `exploding`, or nothing where nothing is wrong with a gradient.

    Args:
        norm: of the gradient of a weight, or of one that arrives at an activation; finite.
        reference: the norm at the model's output; where that is 0 or not finite only `zero` can be told.
    """
    if norm == 0:
        return "zero"
    if not 0 < reference < math.inf:
        return ""
    if norm < vanishing * reference:
        return "vanishing"
    return "exploding" if norm > exploding * reference else ""
