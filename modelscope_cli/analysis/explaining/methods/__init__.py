"""The methods of `explain`: each takes a scored model and one image, `(1, C, H, W)`, and returns a map.

The names are read before torch is imported, so a method's function is imported when it is called.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from modelscope_cli.analysis.explaining.layer import Map
    from modelscope_cli.analysis.explaining.scored import Scored

    Explain = Callable[[Scored, Tensor], Map]

LAYER, PIXELS, PASS = "layer", "pixels", "pass"


@dataclass(frozen=True, slots=True)
class Method:
    """One method."""

    explain: "Explain"  # computes the map
    # What it differentiates or changes: the `layer`, the `pixels`, or the whole `pass` by its own rules
    kind: str
    units: str = ""  # the unit of the map; empty without one
    brief: "Explain | None" = None  # a faster variant for comparisons
    is_local: bool = True  # whether it takes the gradient at the image alone

    def briefly(self, scored: "Scored", image: "Tensor") -> "Map":
        return (self.brief or self.explain)(scored, image)


def _method(kind: str, function: str, units: str = "", brief: str = "", *, is_local: bool = True) -> Method:
    """Return the method of a function in `of_<kind>.py`."""

    def imported(name: str) -> "Explain":
        def explain(*args: Any) -> "Map":
            made: Map = getattr(import_module(f"{__name__}.of_{kind}"), name)(*args)
            return made

        return explain

    return Method(imported(function), kind, units, imported(brief) if brief else None, is_local)


METHODS = {
    "hirescam": _method(LAYER, "hirescam", "logits"),
    "gradcam": _method(LAYER, "gradcam", "logits"),
    "gradcam++": _method(LAYER, "gradcam_plus_plus"),
    "layercam": _method(LAYER, "layercam"),
    "saliency": _method(PIXELS, "saliency"),
    "input-x-gradient": _method(PIXELS, "input_x_gradient", "logits"),
    "integrated-gradients": _method(
        PIXELS, "integrated_gradients", "logits", "integrate_briefly", is_local=False
    ),
    "occlusion": _method(PIXELS, "occlusion", is_local=False),
    "rollout": _method(PASS, "rollout", is_local=False),
    "lrp": _method(PASS, "lrp", "logits"),
}
