"""Input x gradient: what each pixel adds to the logit, to first order; Shrikumar et al. 2016, section 3."""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, share_of
from modelscope_cli.analysis.explaining.scored import Scored


def input_x_gradient(scored: Scored, image: Tensor) -> Map:
    """Return the sum over a pixel's channels of value times gradient; the value is the prepared one."""
    ((score, gradient),) = scored.gradients(image)
    cells = (image * gradient)[0].float().sum(0).cpu()
    return Map(cells, "the prepared pixel times its gradient", adds_up=share_of(cells, float(score)))
