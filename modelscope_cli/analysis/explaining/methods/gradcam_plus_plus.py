"""Grad-CAM++: Grad-CAM with weights that count small objects as much as large ones.

Chattopadhay et al. 2018, equations 13, 14 and 19, for the exponential of the score. The fraction is reduced by the
square of the gradient to 1 / (2 + A g), which needs no constant against division by zero.
"""

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def gradcam_plus_plus(scored: Scored, image: Tensor) -> Map:
    """Return the weighted sum of the layer's channels, never below zero."""
    at = at_layer(scored, image)
    shares = 2 + at.activation.sum((1, 2), keepdim=True) * at.gradient
    weights = torch.where(shares == 0, 0, at.gradient.relu() / shares).sum((1, 2), keepdim=True)
    return at.map((weights * at.activation).sum(0).relu())
