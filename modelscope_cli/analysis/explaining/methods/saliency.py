"""Saliency: the largest |gradient| of a pixel's channels; Simonyan et al. 2014, section 3. It has no sign."""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, strongest
from modelscope_cli.analysis.explaining.scored import Scored


def saliency(scored: Scored, image: Tensor) -> Map:
    """Return how much the logit moves with each pixel."""
    ((_, gradient),) = scored.gradients(image)
    return Map(strongest(gradient[0].float()), "the largest |gradient| of a pixel's channels")
