"""Saliency: the largest |gradient| of a pixel's channels, unsigned; Simonyan et al. 2014, section 3."""

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, strongest
from modelscope_cli.analysis.explaining.scored import Scored


def saliency(scored: Scored, image: Tensor) -> Map:
    """Return the sensitivity of the logit to each pixel."""
    ((_, gradient),) = scored.gradients(image)
    return Map(strongest(gradient[0].float()), "the largest |gradient| of a pixel's channels")
