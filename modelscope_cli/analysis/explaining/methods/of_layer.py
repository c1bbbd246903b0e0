"""Methods that explain by the cells of one layer."""

from torch import Tensor

from modelscope_cli.analysis.explaining.layer import Map, map_at_layer
from modelscope_cli.analysis.explaining.scored import Scored


def hirescam(scored: Scored, image: Tensor) -> Map:
    """Return gradient times activation, summed over channels: the first-order contribution of each cell.

    Draelos & Carin 2020, "Use HiResCAM instead of Grad-CAM for faithful explanations". With a linear head, with or
    without global pooling, the cells add up to the logit minus the head's bias.
    """
    return map_at_layer(scored, image, lambda activation, gradient: (gradient * activation).sum(0))


def gradcam(scored: Scored, image: Tensor) -> Map:
    """Return the activation weighted by the gradient's mean over positions, summed over channels.

    Selvaraju et al. 2017, equations 1 and 2, without the final ReLU, so that evidence against the class stays
    visible.
    """
    return map_at_layer(
        scored, image, lambda activation, gradient: (gradient.mean((1, 2), True) * activation).sum(0)
    )
