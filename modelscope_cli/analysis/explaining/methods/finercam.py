"""Finer-CAM: Grad-CAM of the margin between a class and similar ones; Zhang et al. 2025, section 3."""

from dataclasses import replace

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map
from modelscope_cli.analysis.explaining.methods.gradcam import gradcam
from modelscope_cli.analysis.explaining.scored import Scored, UnfitError
from modelscope_cli.analysis.explaining.target import ClassTarget


def finercam(scored: Scored, image: Tensor) -> Map:
    """Return the weighted sum of the layer's channels, compared with one class or the three nearest."""
    if not isinstance(scored.target, ClassTarget):
        raise UnfitError(
            "finercam compares a class with others, and the target is not a class", "--method gradcam"
        )
    contrast = replace(scored.target, is_contrast=True)
    return replace(gradcam(replace(scored, target=contrast), image), adds_up=None)
