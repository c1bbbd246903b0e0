"""Gradient attacks on any differentiable function of pixels: fast gradient sign, iterated, projected.

`fgsm` is Goodfellow et al. 2015, "Explaining and Harnessing Adversarial Examples", section 4; `ifgsm` Kurakin et
al. 2017, "Adversarial examples in the physical world", section 2.2; `pgd` Madry et al. 2018, "Towards Deep Learning
Models Resistant to Adversarial Attacks", section 2.1. They are one loop: `fgsm` is its first step, and `pgd` begins
somewhere else in the ball.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.attack.norm_balls import BALLS, Ball
from modelscope_cli.analysis.attack.request import AttackRequest
from modelscope_cli.analysis.gradients.backward import backward_pass
from modelscope_cli.errors import CannotRunError


class Detachable(Protocol):
    """What a model says: a tensor of logits, or a whole answer."""

    def detach(self) -> Any:
        """Return the same without its graph."""


A = TypeVar("A", bound=Detachable)
A_contra = TypeVar("A_contra", bound=Detachable, contravariant=True)


class Aimed(Protocol[A_contra]):
    """What a search wants of whatever the model says."""

    @property
    def is_targeted(self) -> bool:
        """Whether the loss has to fall, and not to rise."""

    def loss(self, answer: A_contra) -> Tensor:
        """Return how far it is from there."""

    def is_reached(self, answer: A_contra) -> bool:
        """Whether it is there."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What an attack on a row of logits wants: the class `index`, or (not targeted) any but that."""

    index: int
    is_targeted: bool

    def loss(self, logits: Tensor) -> Tensor:
        """Return the cross-entropy of the class, which a targeted attack lowers and any other raises."""
        return F.cross_entropy(logits, logits.new_tensor([self.index], dtype=torch.long))

    def is_reached(self, logits: Tensor) -> bool:
        return (int(logits.argmax(1)) == self.index) == self.is_targeted


@dataclass(frozen=True, slots=True)
class Found(Generic[A]):
    """The best picture on the way, and the way.

    Attributes:
        pixels: `(1, C, H, W)` float32, inside the ball; `answer`: what the model says of them.
        levels: the same rounded to 8 bits inside the ball, uint8 on the CPU.
        is_success: whether `pixels` reach the goal.
        restart, iterations: the run it comes from, and the gradient steps there; both from 0.
        losses: of every run, before its first step and after each; in nats.
        n_forward, n_backward: passes through the model in all runs.
        n_stuck: runs that ended early where the gradient is exactly zero.
    """

    pixels: Tensor
    answer: A
    levels: Tensor
    is_success: bool
    restart: int
    iterations: int
    losses: tuple[tuple[float, ...], ...]
    n_forward: int
    n_backward: int
    n_stuck: int


def search(
    says_of: Callable[[Tensor], A],
    pixels: Tensor,
    goal: Aimed[A],
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
) -> Found[A]:
    """Look for a picture inside the ball that reaches the goal; stop at the first that still does in 8 bits.

    Of those that do not, the best is one that reaches the goal before rounding, then the one whose loss is best.

    Args:
        says_of: the model, from pixels of 0..1, `(1, C, H, W)`, to what it says of them.
        pixels: `(1, C, H, W)` float32, 8-bit levels / 255.
        tick: called after every step.

    Raises:
        CannotRunError: the scores do not depend on the pixels, or numbers are not finite (exit 4).
    """
    ball = BALLS[request.norm](pixels, request.epsilon)
    generator = torch.Generator().manual_seed(request.seed)
    losses: list[list[float]] = []
    best: tuple[tuple[bool, bool, float], _Point[A], int] | None = None
    n_rounded = n_stuck = n_backward = 0

    def rounded(point: _Point[A]) -> Tensor:
        return as_pixels(ball.rounded(point.pixels), pixels.device)

    for restart in range(request.restarts):
        start = ball.random(generator) if request.method == "pgd" else pixels
        losses.append([])
        for point in _climb(says_of, ball, start, goal, request):
            tick()
            losses[-1].append(point.loss)
            is_success = goal.is_reached(point.answer)
            is_lasting = is_success and goal.is_reached(says_of(rounded(point)))
            n_rounded += is_success
            rank = is_lasting, is_success, -point.loss if goal.is_targeted else point.loss
            if best is None or rank > best[0]:
                best = rank, point, restart
            if is_lasting:
                break
        else:
            is_stuck = len(losses[-1]) <= request.steps
            n_stuck += is_stuck
            n_backward += is_stuck
        n_backward += len(losses[-1]) - 1
        if best is not None and best[0][0]:
            break
    assert best is not None
    (_, is_success, _), point, restart = best
    return Found(
        pixels=point.pixels,
        answer=point.answer,
        levels=ball.rounded(point.pixels),
        is_success=is_success,
        restart=restart,
        iterations=point.iteration,
        losses=tuple(map(tuple, losses)),
        n_forward=sum(map(len, losses)) + n_rounded,
        n_backward=n_backward,
        n_stuck=n_stuck,
    )


@dataclass(frozen=True, slots=True)
class _Point(Generic[A]):
    """A picture on the way, after `iteration` steps."""

    iteration: int
    pixels: Tensor
    answer: A
    loss: float


def _climb(
    says_of: Callable[[Tensor], A], ball: Ball, start: Tensor, goal: Aimed[A], request: AttackRequest
) -> Iterator[_Point[A]]:
    """Yield the start and the picture after each step, up to where the gradient is exactly zero."""
    sign = -1.0 if goal.is_targeted else 1.0
    pixels = start
    for iteration in range(request.steps + 1):
        pixels = pixels.detach().requires_grad_()
        answer = says_of(pixels)
        loss = goal.loss(answer)
        if not loss.isfinite():
            raise CannotRunError(
                f"the loss is {float(loss.detach())} after {iteration} steps of the attack",
                "modelscope grads ...   shows where gradients are lost",
            )
        yield _Point(iteration, pixels.detach(), answer.detach(), float(loss.detach()))
        if iteration == request.steps:
            return
        gradient = _gradient(loss, pixels)
        if not gradient.any():
            return
        with torch.no_grad():
            pixels = ball.nearest(pixels + sign * request.step_size * ball.steepest(gradient))


def _gradient(loss: Tensor, pixels: Tensor) -> Tensor:
    """Differentiate with respect to the pixels alone; nothing is accumulated anywhere."""
    gradient = None
    if loss.requires_grad:
        with backward_pass():
            (gradient,) = torch.autograd.grad(loss, pixels, allow_unused=True)
    if gradient is None:
        raise CannotRunError(
            "the model's scores send no gradient to the image: its forward runs under no_grad, detaches, rounds, "
            "or is quantized",
            "modelscope stats ...   needs no gradients",
        )
    if not gradient.isfinite().all():
        raise CannotRunError(
            "the gradient with respect to the image has NaN or infinite values",
            "modelscope grads ...   shows where gradients are lost",
        )
    return gradient


def as_pixels(levels: Tensor, device: torch.device | str) -> Tensor:
    """Turn 8-bit levels into float32 pixels of 0..1 on a device."""
    return levels.to(device, torch.float32) / 255
