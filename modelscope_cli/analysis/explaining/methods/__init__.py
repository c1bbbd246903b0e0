"""The methods of `explain`: each takes a scored model and one image, `(1, C, H, W)`, and returns a map."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from modelscope_cli.analysis.explaining.layer import Map
from modelscope_cli.analysis.explaining.methods.of_layer import gradcam, hirescam
from modelscope_cli.analysis.explaining.methods.of_pixels import (
    input_x_gradient,
    integrate_briefly,
    integrated_gradients,
    occlusion,
    saliency,
)
from modelscope_cli.analysis.explaining.scored import Scored

LAYER, PIXELS = "layer", "pixels"
Explain = Callable[[Scored, Tensor], Map]


@dataclass(frozen=True, slots=True)
class Method:
    """One method."""

    explain: Explain  # computes the map
    kind: str  # what it differentiates or changes: the `layer` or the `pixels`
    units: str = ""  # the unit of the map; empty without one
    brief: Callable[[Scored, Tensor], Tensor] | None = None  # makes `Map.brief`
    is_local: bool = True  # whether it takes the gradient at the image alone

    def briefly(self, scored: Scored, image: Tensor) -> Tensor:
        """Return what comparisons compare, `(rows, columns)`."""
        return self.brief(scored, image) if self.brief else self.explain(scored, image).cells


# The names are those of `explaining.request.METHOD_NAMES`.
METHODS = {
    "hirescam": Method(hirescam, LAYER, "logits"),
    "gradcam": Method(gradcam, LAYER, "logits"),
    "saliency": Method(saliency, PIXELS),
    "input-x-gradient": Method(input_x_gradient, PIXELS, "logits"),
    "integrated-gradients": Method(integrated_gradients, PIXELS, "logits", integrate_briefly, is_local=False),
    "occlusion": Method(occlusion, PIXELS, is_local=False),
}
