"""HiResCAM: gradient times activation, summed over the channels, cell by cell.

Draelos & Carin 2020, "Use HiResCAM instead of Grad-CAM for faithful explanations". With a linear head, behind
global pooling or none, the cells add up to the logit less the head's bias.
"""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def hirescam(scored: Scored, image: Tensor) -> Map:
    """Return what each cell of the layer adds to the logit, to first order."""
    at = at_layer(scored, image)
    return at.map((at.gradient * at.activation).sum(0), is_in_logits=True)
