"""The map that a method returns, and the gradients at the explained layer."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.explaining.layer import no_gradient
from modelscope_cli.analysis.explaining.scored import ExplainedLayer, Scored


@dataclass(frozen=True, slots=True)
class Map:
    """The evidence of one image by one method.

    Attributes:
        cells: `(rows, columns)` float32, at the resolution of the layer or the image; signed if the method is.
        why: how it was computed, or why this layer was chosen, as a sentence.
        layer: the name of the layer; None for methods that explain the pixels.
        adds_up: the sum of the cells over the logit, for maps in logits.
        completeness: the relative error of that sum.
        steps: number of passes, if it varies.
    """

    cells: Tensor
    why: str
    layer: str | None = None
    adds_up: float | None = None
    completeness: float | None = None
    steps: int | None = None

    def on(self, size: tuple[int, int]) -> Tensor:
        """Return the map at the size of the image, `(H, W)`, by bilinear interpolation."""
        if self.cells.shape == size:
            return self.cells
        return F.interpolate(self.cells[None, None], size=size, mode="bilinear", align_corners=False)[0, 0]


@dataclass(frozen=True, slots=True)
class AtLayer:
    """The activation and the gradient at the layer, each `(C, rows, columns)`, and the score."""

    layer: ExplainedLayer
    activation: Tensor
    gradient: Tensor
    score: float

    def map(self, cells: Tensor, *, is_in_logits: bool = False) -> Map:
        """Return cells of the layer's grid as a map."""
        adds_up = share_of(cells, self.score) if is_in_logits else None
        return Map(cells.cpu(), self.layer.why, self.layer.name, adds_up)


def at_layer(scored: Scored, image: Tensor) -> AtLayer:
    """Compute activation and gradient at the layer of one image, `(1, C, H, W)`."""
    layer = scored.find(scored, image)
    values = scored.at(layer, image)
    gradient = layer.layout.maps(values.gradient)[0]
    if not gradient.any():
        raise no_gradient(layer.name, layer.layout.prefix > 0 and bool(values.gradient.any()))
    return AtLayer(layer, layer.layout.maps(values.activation)[0], gradient, float(values.score))


def share_of(cells: Tensor, score: float) -> float | None:
    """Return the sum of a map as a share of the score."""
    return float(cells.double().sum()) / score if score else None


def strongest(gradient: Tensor) -> Tensor:
    """Return the largest |gradient| over the channels, `(C, H, W)` to `(H, W)`: Simonyan et al. 2014, section 3."""
    return torch.amax(gradient.abs(), 0).cpu()
