"""Grad-CAM: the activation weighted by the gradient's mean over positions, channel by channel.

Selvaraju et al. 2017, equations 1 and 2, without the final ReLU, so that evidence against the class stays visible.
"""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def gradcam(scored: Scored, image: Tensor) -> Map:
    """Return the weighted sum of the layer's channels."""
    at = at_layer(scored, image)
    weights = at.gradient.mean((1, 2), keepdim=True)
    return at.map((weights * at.activation).sum(0), is_in_logits=True)
