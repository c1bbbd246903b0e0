"""Grad-CAM++: Grad-CAM with weights that count a small object as much as a large one.

Chattopadhay et al. 2018, equations 13, 14 and 19, for a score behind an exponential; 1e-7 keeps a cell without a
gradient from dividing by zero.
"""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def gradcam_plus_plus(scored: Scored, image: Tensor) -> Map:
    """Return the weighted sum of the layer's channels, never below zero."""
    at = at_layer(scored, image)
    square, cube = at.gradient**2, at.gradient**3
    shares = square / (2 * square + at.activation.sum((1, 2), keepdim=True) * cube + 1e-7)
    weights = (shares * at.gradient.relu()).sum((1, 2), keepdim=True)
    return at.map((weights * at.activation).sum(0).relu())
