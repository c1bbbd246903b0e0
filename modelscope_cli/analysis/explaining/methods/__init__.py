"""The methods of `explain`: each takes a scored model and one image, `(1, C, H, W)`, and returns a map."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from modelscope_cli.analysis.explaining.map import Map
from modelscope_cli.analysis.explaining.methods.finercam import finercam
from modelscope_cli.analysis.explaining.methods.gradcam import gradcam
from modelscope_cli.analysis.explaining.methods.gradcam_plus_plus import gradcam_plus_plus
from modelscope_cli.analysis.explaining.methods.hirescam import hirescam
from modelscope_cli.analysis.explaining.methods.input_x_gradient import input_x_gradient
from modelscope_cli.analysis.explaining.methods.integrated_gradients import (
    integrate_briefly,
    integrated_gradients,
)
from modelscope_cli.analysis.explaining.methods.layercam import layercam
from modelscope_cli.analysis.explaining.methods.lrp import lrp
from modelscope_cli.analysis.explaining.methods.occlusion import occlusion
from modelscope_cli.analysis.explaining.methods.rollout import rollout
from modelscope_cli.analysis.explaining.methods.saliency import saliency
from modelscope_cli.analysis.explaining.methods.smoothgrad import smoothgrad
from modelscope_cli.analysis.explaining.scored import Scored

LAYER, PIXELS, PASS = "layer", "pixels", "pass"


@dataclass(frozen=True, slots=True)
class Method:
    """One method.

    Attributes:
        explain: computes the map.
        kind: what it differentiates or changes: the `layer`, the `pixels`, or the whole `pass` by its own rules.
        units: the unit of the map; empty without one.
        brief: a faster variant for comparisons.
    """

    explain: Callable[[Scored, Tensor], Map]
    kind: str
    units: str = ""
    brief: Callable[[Scored, Tensor], Map] | None = None

    def briefly(self, scored: Scored, image: Tensor) -> Map:
        return (self.brief or self.explain)(scored, image)


METHODS = {
    "hirescam": Method(hirescam, LAYER, "logits"),
    "gradcam": Method(gradcam, LAYER, "logits"),
    "gradcam++": Method(gradcam_plus_plus, LAYER),
    "layercam": Method(layercam, LAYER),
    "finercam": Method(finercam, LAYER),
    "saliency": Method(saliency, PIXELS),
    "input-x-gradient": Method(input_x_gradient, PIXELS, "logits"),
    "integrated-gradients": Method(integrated_gradients, PIXELS, "logits", integrate_briefly),
    "smoothgrad": Method(smoothgrad, PIXELS),
    "occlusion": Method(occlusion, PIXELS),
    "rollout": Method(rollout, PASS),
    "lrp": Method(lrp, PASS, "logits"),
}
