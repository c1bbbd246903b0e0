"""Finer-CAM: Grad-CAM of by how much a class is ahead of those it is mistaken for; Zhang et al. 2025, section 3."""

from dataclasses import replace

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map, Unfit, at_layer
from modelscope_cli.analysis.explaining.scored import Scored
from modelscope_cli.analysis.explaining.target import ClassTarget, Contrast


def finercam(scored: Scored, image: Tensor) -> Map:
    """Return the weighted sum of the layer's channels, against one class or the three nearest."""
    target = scored.target
    if not isinstance(target, ClassTarget):
        raise Unfit("finer-cam holds a class against others, and the target is not a class", "--method gradcam")
    if not isinstance(target, Contrast):
        target = Contrast(target.index, target.label)
    at = at_layer(replace(scored, target=target), image)
    weights = at.gradient.mean((1, 2), keepdim=True)
    return at.map((weights * at.activation).sum(0))
