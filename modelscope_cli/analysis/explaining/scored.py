"""A model and what is explained of it, as a function from prepared images to one number each."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.explaining.followed import Cut, Place
from modelscope_cli.hooks.session import HookSession, Intervention, Observer

if TYPE_CHECKING:
    from modelscope_cli.analysis.explaining.layer import Layer

Run = Callable[[Tensor], Any]


class Target(Protocol):
    """What is explained of a model's output."""

    @property
    def words(self) -> str:
        """`207 (golden retriever)`."""

    def score(self, output: Any) -> Tensor:
        """Return the logit of every image, `(N,)` float32, differentiable."""

    def probability(self, output: Any) -> Tensor:
        """Return the same as a share of certainty, `(N,)` in 0..1."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What stood at one place of the pass, the gradient of the score with respect to it, and the score, `(N,)`."""

    activation: Tensor
    gradient: Tensor
    score: Tensor


@dataclass(frozen=True, slots=True)
class Scored:
    """A model that is open, and its target.

    Attributes:
        run: from images `(N, C, H, W)` to the model's output.
        batch: images in one pass.
        find: the layer at which one image is explained.
        seed: of whatever a method draws.
    """

    run: Run
    target: Target
    batch: int
    find: Callable[["Scored", Tensor], "Layer"]
    seed: int = 0

    def scores(self, images: Tensor) -> Tensor:
        """Return the logit of the target for every image, `(N,)`, without a graph."""
        return self._each(images, self.target.score)

    def probability(self, images: Tensor) -> Tensor:
        """Return the probability of the target for every image, `(N,)`."""
        return self._each(images, self.target.probability)

    def _each(self, images: Tensor, number: Callable[[Any], Tensor]) -> Tensor:
        with torch.no_grad():
            return torch.cat([number(self.run(some)) for some in images.split(self.batch)])

    def gradients(self, images: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Give the scores and their gradients with respect to the pixels, batch by batch: `(n,)`, `(n, C, H, W)`."""
        for some in images.split(self.batch):
            pixels = some.detach().clone().requires_grad_()
            score = self.target.score(self.run(pixels))
            (gradient,) = torch.autograd.grad(score.sum(), pixels)
            yield score.detach(), gradient

    def at(self, place: Place, image: Tensor) -> Seen:
        """Run once and look at one place; only what comes behind it is kept for the gradient.

        Raises:
            CannotRunError: the pass did not come there (exit 4).
        """
        with Cut(image, place) as cut:
            score = self.target.score(self.run(image))
        leaf = cut.seen()
        gradient = torch.zeros_like(leaf)
        if score.requires_grad:
            (found,) = torch.autograd.grad(score.sum(), leaf, allow_unused=True)
            gradient = gradient if found is None else found
        return Seen(leaf.detach().float(), gradient.float(), score.detach())


@contextmanager
def opened(
    model: nn.Module,
    arrange: Callable[[Tensor], tuple[Any, ...]],
    interventions: Sequence[Intervention] = (),
    observers: Sequence[Observer] = (),
) -> Iterator[Run]:
    """Give the model as a function of images, in eval mode; it is left as it was found.

    No parameter asks for a gradient while this is open, so that a graph begins where something else does.

    Args:
        arrange: makes the arguments of one forward of images.
        interventions: change every pass alike, and count the first.
    """
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        HookSession(model, observers, with_gradients=True, interventions=interventions) as session,
    ):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        is_again = itertools.chain([False], itertools.repeat(True))

        def run(images: Tensor) -> Any:
            repeats = next(is_again)
            for intervention in interventions:
                intervention.begin(is_again=repeats)
            return session.run(arrange(images))

        yield run
