"""Methods that explain by the cells of one layer."""

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.layer import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def hirescam(scored: Scored, image: Tensor) -> Map:
    """Return gradient times activation, summed over channels: the first-order contribution of each cell.

    Draelos & Carin 2020, "Use HiResCAM instead of Grad-CAM for faithful explanations". With a linear head, with or
    without global pooling, the cells add up to the logit minus the head's bias.
    """
    at = at_layer(scored, image)
    return at.map((at.gradient * at.activation).sum(0), is_in_logits=True)


def gradcam(scored: Scored, image: Tensor) -> Map:
    """Return the activation weighted by the gradient's mean over positions, summed over channels.

    Selvaraju et al. 2017, equations 1 and 2, without the final ReLU, so that evidence against the class stays
    visible.
    """
    at = at_layer(scored, image)
    weights = at.gradient.mean((1, 2), keepdim=True)
    return at.map((weights * at.activation).sum(0), is_in_logits=True)


def gradcam_plus_plus(scored: Scored, image: Tensor) -> Map:
    """Return Grad-CAM with weights that count small objects as much as large ones; never below zero.

    Chattopadhay et al. 2018, equations 13, 14 and 19, for the exponential of the score. The fraction is reduced by
    the square of the gradient to 1 / (2 + A g), which needs no constant against division by zero.
    """
    at = at_layer(scored, image)
    shares = 2 + at.activation.sum((1, 2), keepdim=True) * at.gradient
    weights = torch.where(shares == 0, 0, at.gradient.relu() / shares).sum((1, 2), keepdim=True)
    return at.map((weights * at.activation).sum(0).relu())


def layercam(scored: Scored, image: Tensor) -> Map:
    """Return HiResCAM with positive gradients only, never below zero; Jiang et al. 2021, equations 4 to 6."""
    at = at_layer(scored, image)
    return at.map((at.gradient.relu() * at.activation).sum(0).relu())
