"""LayerCAM: HiResCAM with positive gradients only; Jiang et al. 2021, equations 4 to 6."""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def layercam(scored: Scored, image: Tensor) -> Map:
    """Return the evidence for the class in each cell, never below zero."""
    at = at_layer(scored, image)
    return at.map((at.gradient.relu() * at.activation).sum(0).relu())
