"""Gradient attacks on any differentiable function of pixels: fast gradient sign, iterated, projected.

`fgsm` is Goodfellow et al. 2015, "Explaining and Harnessing Adversarial Examples", section 4; `ifgsm` Kurakin et
al. 2017, "Adversarial examples in the physical world", section 2.2; `pgd` Madry et al. 2018, "Towards Deep Learning
Models Resistant to Adversarial Attacks", section 2.1. They are one loop: `fgsm` is its first step, and `pgd` begins
somewhere else in the ball.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.attack.request import AttackRequest
from modelscope_cli.analysis.gradients.freezing import backward_pass
from modelscope_cli.errors import CannotRunError


class Ball:
    """All pixels in [0, 1] within `radius` of `center` in some norm. Pixels are float32 of any shape."""

    def __init__(self, center: Tensor, radius: float) -> None:
        self.center = center
        self.radius = radius

    @staticmethod
    def length(change: Tensor) -> float:
        """Return the length of a change in this norm."""
        raise NotImplementedError

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the step of length 1 along which a linear function with this gradient, not zero, grows most."""
        raise NotImplementedError

    def nearest(self, pixels: Tensor) -> Tensor:
        """Return the nearest point of the ball, then clamped to [0, 1]; what lies inside comes back as it is."""
        raise NotImplementedError

    def random(self, generator: torch.Generator) -> Tensor:
        """Return a point drawn evenly from the ball, then clamped to [0, 1]; drawn on the CPU."""
        raise NotImplementedError

    def rounded(self, pixels: Tensor) -> Tensor:
        """Return a point of the ball as 8-bit levels, uint8 on the CPU: the nearest, but never outside the ball.

        The center has to be 8-bit levels / 255 itself.
        """
        levels = self.center.cpu().double().mul(255).round()
        change = self._rounded_change(pixels.cpu().double() * 255 - levels)
        return (levels + change).clamp(0, 255).to(torch.uint8)

    def _rounded_change(self, change: Tensor) -> Tensor:
        """Return whole levels near `change`, which is in levels, and no farther from zero than 255 radii."""
        raise NotImplementedError


class LinfBall(Ball):
    """No value moves by more than the radius."""

    @staticmethod
    def length(change: Tensor) -> float:
        return float(change.abs().max())

    def steepest(self, gradient: Tensor) -> Tensor:
        return gradient.sign()

    def nearest(self, pixels: Tensor) -> Tensor:
        low, high = self.center - self.radius, self.center + self.radius
        return torch.clamp(pixels, low, high).clamp(0, 1)

    def random(self, generator: torch.Generator) -> Tensor:
        shares = torch.rand(self.center.shape, generator=generator).mul_(2).sub_(1)
        return (self.center + self.radius * shares.to(self.center.device)).clamp(0, 1)

    def _rounded_change(self, change: Tensor) -> Tensor:
        reach = int(255 * self.radius + 1e-6)  # 8/255 * 255 may come out as 7.999...
        return change.round().clamp(-reach, reach)


class L2Ball(Ball):
    """The whole change is no longer than the radius."""

    @staticmethod
    def length(change: Tensor) -> float:
        return float(torch.linalg.vector_norm(change, dtype=torch.float64))

    def steepest(self, gradient: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(gradient)
        if norm < 1e-15:  # the squares of such numbers vanish in float32
            gradient = gradient / gradient.abs().max()
            norm = torch.linalg.vector_norm(gradient)
        return gradient / norm

    def nearest(self, pixels: Tensor) -> Tensor:
        change = pixels - self.center
        norm = torch.linalg.vector_norm(change)
        if norm > self.radius:
            pixels = self.center + change * (self.radius / norm)
        return pixels.clamp(0, 1)

    def random(self, generator: torch.Generator) -> Tensor:
        direction = torch.randn(self.center.shape, generator=generator)
        share = torch.rand((), generator=generator) ** (1 / direction.numel())
        change = direction * (self.radius * share / torch.linalg.vector_norm(direction))
        return (self.center + change.to(self.center.device)).clamp(0, 1)

    def _rounded_change(self, change: Tensor) -> Tensor:
        rounded = change.round()
        excess = float(rounded.square().sum()) - (255 * self.radius) ** 2
        if excess <= 0:
            return rounded
        # Rounding outwards led out of the ball. As many of those values as it takes go one level back, those first
        # that were rounded farthest; all of them would be inside for certain.
        flat = rounded.flatten()
        lead = flat.abs() - change.flatten().abs()
        outwards = lead.argsort(descending=True)[: int((lead > 0).sum())]
        gains = (2 * flat[outwards].abs() - 1).cumsum(0)
        back = outwards[: int((gains < excess).sum()) + 1]
        flat[back] -= flat[back].sign()
        return flat.view_as(rounded)


BALLS: dict[str, type[Ball]] = {"linf": LinfBall, "l2": L2Ball}


class Detachable(Protocol):
    """What a model says: a tensor of logits, or a whole answer."""

    def detach(self) -> Any:
        """Return the same without its graph."""


# Where a bisection ends: what was found and what was not are within 5 %, or too short to matter.
_NEAR, _SHORTEST = 1.05, 1e-6
A = TypeVar("A", bound=Detachable)
A_contra = TypeVar("A_contra", bound=Detachable, contravariant=True)


class Objective(Protocol[A_contra]):
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
class BestAttempt(Generic[A]):
    """The best picture on the way, and the way.

    Attributes:
        pixels: `(1, C, H, W)` float32, inside the ball; `answer`: what the model says of them.
        levels: the same rounded to 8 bits inside the ball, uint8 on the CPU.
        is_success: whether `pixels` reach the goal.
        restart, iterations: the run it comes from, and the gradient steps there; both from 0.
        losses: of every run, before its first step and after each; in nats.
        n_forward, n_backward: passes through the model in all runs.
        n_stuck: runs that ended early where the gradient is exactly zero.
        is_final: whether the search ended there; else it is the best of those that fell short.
        epsilon, step_size: of these runs; of the smallest change those of the run it comes from.
        not_within: of the smallest change the largest epsilon within which none was found; 0 where none was tried.
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
    is_final: bool
    epsilon: float
    step_size: float
    not_within: float | None = None


def search(
    says_of: Callable[[Tensor], A],
    pixels: Tensor,
    goal: Objective[A],
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
    near: Tensor | None = None,
    *,
    is_for_file: bool = True,
) -> BestAttempt[A]:
    """Look for an image inside the ball that reaches the goal; stop at the first that still does in 8 bits.

    Of those that do not, the best is one that reaches the goal before rounding, then the one whose loss is best.

    Args:
        says_of: the model, from pixels of 0..1, `(1, C, H, W)`, to what it says of them.
        pixels: `(1, C, H, W)` float32, 8-bit levels / 255.
        tick: called after every step.
        near: where to start instead, moved into the ball.
        is_for_file: without, stop at the first image that reaches the goal before rounding.
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
        if near is not None and restart == 0:
            start = ball.nearest(near)
        losses.append([])
        for point in _climb(says_of, ball, start, goal, request):
            tick()
            losses[-1].append(point.loss)
            is_success = goal.is_reached(point.answer)
            is_lasting = is_success
            if is_success and is_for_file:
                is_lasting = goal.is_reached(says_of(rounded(point)))
                n_rounded += 1
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
    (is_final, is_success, _), point, restart = best
    return BestAttempt(
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
        is_final=is_final,
        epsilon=request.epsilon,
        step_size=request.step_size,
    )


def smallest(
    says_of: Callable[[Tensor], A],
    pixels: Tensor,
    goal: Objective[A],
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
) -> BestAttempt[A]:
    """Look for the nearest image that reaches the goal, by bisection over epsilon, and for the nearest 8-bit file.

    Arguments and errors are those of `search`. Epsilon is doubled until an image is found, then bisected (on a
    scale of ratios) between what was found and what was not, until they are within 5 %. A run starts from the
    nearest image so far, moved into the smaller ball; `fgsm`, which is one step from the image itself, does not.
    The file is searched for in the same way, from that length upwards.
    """
    length = BALLS[request.norm].length
    longest = 1.0 if request.norm == "linf" else math.sqrt(pixels.numel())
    runs: list[BestAttempt[A]] = []

    def bisect(
        radius: float, low: float, near: Tensor | None, *, is_for_file: bool
    ) -> tuple[BestAttempt[A] | None, float]:
        """Return the nearest that was found, and the largest radius within which there was none."""
        best, high = None, longest
        unit = 1 / 255 if is_for_file and request.norm == "linf" else 0.0
        while best is None or high > max(low * _NEAR, _SHORTEST):
            if unit:
                radius = unit * math.ceil(radius / unit - 1e-6)
                if best is not None and radius >= high:
                    break
            start = None if request.method == "fgsm" else near
            found = search(
                says_of, pixels, goal, request.within(radius), tick, start, is_for_file=is_for_file
            )
            runs.append(found)
            if found.is_final:
                end = as_pixels(found.levels, pixels.device) if is_for_file else found.pixels
                best, near, high = found, found.pixels, min(radius, length(end - pixels))
            else:
                low = radius
                if radius >= longest:
                    break
            radius = min(2 * radius, longest) if best is None else math.sqrt(low * high) if low else high / 2
        return best, low

    best, low = bisect(request.epsilon, 0.0, None, is_for_file=False)
    file = None
    if best is not None:
        reach = max(length(best.pixels - pixels), _SHORTEST)
        file, _ = bisect(reach * _NEAR, reach, best.pixels, is_for_file=True)
    best = best or runs[-1]
    before = itertools.takewhile(lambda run: run is not best, runs)
    return replace(
        best,
        levels=(file or best).levels,
        restart=sum(len(run.losses) for run in before) + best.restart,
        losses=tuple(losses for run in runs for losses in run.losses),
        n_forward=sum(run.n_forward for run in runs),
        n_backward=sum(run.n_backward for run in runs),
        n_stuck=sum(run.n_stuck for run in runs),
        not_within=low,
    )


@dataclass(frozen=True, slots=True)
class _Point(Generic[A]):
    """A picture on the way, after `iteration` steps."""

    iteration: int
    pixels: Tensor
    answer: A
    loss: float


def _climb(
    says_of: Callable[[Tensor], A], ball: Ball, start: Tensor, goal: Objective[A], request: AttackRequest
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
