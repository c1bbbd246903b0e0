"""A model and its target as a function from preprocessed images to one number each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.explaining.dataflow import Cut, ValuePosition
from modelscope_cli.analysis.explaining.target import ClassTarget, OtherTarget
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.forward_passes import Run


class UnfitError(CannotRunError):
    """A method does not fit the model: omitted among several, an error if requested by name."""


class ZeroGradientError(UnfitError):
    """The gradient of the score is zero everywhere."""


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The positions of the image in a tensor of one image."""

    grid: tuple[int, int]  # rows and columns
    # The tensor's dimensions in the order batch, channel, rows, columns, or batch, channel, tokens
    order: tuple[int, ...]
    prefix: int = 0  # number of tokens before those of the grid

    def maps(self, tensor: Tensor) -> Tensor:
        """Return a tensor as maps, `(N, C, rows, columns)`."""
        ordered = tensor.permute(self.order)
        return ordered if ordered.ndim == 4 else ordered[:, :, self.prefix :].unflatten(2, self.grid)

    def __str__(self) -> str:
        kind = f"{self.grid[0]} x {self.grid[1]}"
        if len(self.order) == 4:
            return kind if self.order[1] == 1 else f"{kind}, channels last"
        tokens = "token" if self.prefix == 1 else "tokens"
        return f"{kind} patch tokens" + (f" after {self.prefix} other {tokens}" if self.prefix else "")


@dataclass(frozen=True, slots=True)
class ExplainedLayer:
    """The explained tensor: its name, position in the pass, layout, and why it was chosen."""

    name: str
    place: ValuePosition
    layout: ImageLayout
    why: str


@dataclass(frozen=True, slots=True)
class LayerGradient:
    """One value of the pass, the gradient of the score with respect to it, and the score, `(N,)`."""

    activation: Tensor
    gradient: Tensor
    score: Tensor


@dataclass(slots=True)
class Counted:
    """A run that counts its images in `images`, and calls `tick` for each."""

    run: Run
    images: int = 0
    tick: Callable[[], object] = lambda: None

    def __call__(self, images: Tensor) -> Any:
        self.images += len(images)
        result = self.run(images)
        for _ in range(len(images)):
            self.tick()
        return result


@dataclass(frozen=True, slots=True)
class Scored:
    """An open model and its target."""

    # From images `(N, C, H, W)` to the model's output; call it with a copy, as a model may work in place
    run: Counted
    target: ClassTarget | OtherTarget
    batch: int  # images per pass
    find: Callable[["Scored", Tensor], ExplainedLayer]  # returns the layer to explain for one image
    seed: int = 0  # the seed of random methods

    def scores(self, images: Tensor) -> Tensor:
        """Return the logit of the target for every image, `(N,)`, without a graph."""
        with torch.no_grad():
            return torch.cat([self.target.score(self.run(some.clone())) for some in images.split(self.batch)])

    def probability(self, images: Tensor) -> Tensor:
        """Return the probability of the target for every image, `(N,)`, of at most one batch."""
        with torch.no_grad():
            return self.target.probability(self.run(images.clone()))

    def gradients(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield scores and their gradients with respect to the pixels, by batch: `(n,)` and `(n, C, H, W)`."""
        for some in images.split(self.batch):
            pixels = some.detach().clone().requires_grad_()
            score = self.target.score(self.run(pixels.clone()))
            gradient = _gradient(score, pixels)
            if gradient is None:
                raise not_connected()
            yield score.detach(), gradient

    def at(self, layer: ExplainedLayer, image: Tensor, *, is_blank: bool = False) -> LayerGradient:
        """Run once and return activation and gradient of one layer, replaced by zeros with `is_blank`.

        The graph begins at the layer.
        """
        image = image.clone()
        with Cut(image, layer.place, is_blank=is_blank) as cut:
            output = self.run(image)
        leaf = cut.seen()
        score = self.target.score(output)
        gradient = _gradient(score, leaf)
        gradient = torch.zeros_like(leaf) if gradient is None else gradient
        return LayerGradient(leaf.detach().float(), gradient.float(), score.detach())


def _gradient(scores: Tensor, value: Tensor) -> Tensor | None:
    """Return the gradient of the sum of the scores; None if it does not depend on the value."""
    if not scores.requires_grad:
        return None
    try:
        return torch.autograd.grad(scores.sum(), value, allow_unused=True)[0]
    except (CannotRunError, RuntimeError):
        raise
    except Exception as error:  # an autograd function of the model may raise anything
        message = f"backward raised {type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise UnfitError(message, "--method occlusion   needs no gradient") from error


def not_connected() -> UnfitError:
    """Return the error for a score without a gradient to the image."""
    message = "the score passes no gradient back to the image"
    shows = "modelscope predict ...   shows the prediction"
    return UnfitError(message, f"{shows}; --method occlusion needs no gradient")
