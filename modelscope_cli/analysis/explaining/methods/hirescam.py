"""HiResCAM: gradient times activation, summed over the channels, cell by cell.

Draelos & Carin 2020, "Use HiResCAM instead of Grad-CAM for faithful explanations". With a linear head, with or
without global pooling, the cells add up to the logit minus the head's bias.
"""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def hirescam(scored: Scored, image: Tensor) -> Map:
    """Return the first-order contribution of each cell of the layer to the logit."""
    at = at_layer(scored, image)
    return at.map((at.gradient * at.activation).sum(0), is_in_logits=True)
