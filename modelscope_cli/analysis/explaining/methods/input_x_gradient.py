"""Input x gradient: the first-order contribution of each pixel to the logit; Shrikumar et al. 2016, section 3."""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, share_of
from modelscope_cli.analysis.explaining.scored import Scored


def input_x_gradient(scored: Scored, image: Tensor) -> Map:
    """Return the sum over channels of the preprocessed value times its gradient."""
    ((score, gradient),) = scored.gradients(image)
    cells = (image * gradient)[0].float().sum(0).cpu()
    return Map(cells, "the prepared pixel times its gradient", adds_up=share_of(cells, float(score)))
