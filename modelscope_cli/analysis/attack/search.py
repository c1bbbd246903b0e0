"""Gradient attacks on any differentiable function from pixels to logits: fast gradient sign, iterated, projected.

`fgsm` is Goodfellow et al. 2015, "Explaining and Harnessing Adversarial Examples", section 4; `ifgsm` Kurakin et
al. 2017, "Adversarial examples in the physical world", section 2.2; `pgd` Madry et al. 2018, "Towards Deep Learning
Models Resistant to Adversarial Attacks", section 2.1. They share one loop: `fgsm` is its first step, and `pgd`
starts at a random point of the ball.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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
        raise NotImplementedError

    def steepest(self, gradient: Tensor) -> Tensor:
        """Return the unit step of steepest ascent for a non-zero gradient."""
        raise NotImplementedError

    def nearest(self, pixels: Tensor) -> Tensor:
        """Return the nearest point of the ball, clamped to [0, 1]; points inside are unchanged."""
        raise NotImplementedError

    def random(self, generator: torch.Generator) -> Tensor:
        """Return a point drawn uniformly from the ball on the CPU, clamped to [0, 1]."""
        raise NotImplementedError

    def rounded(self, pixels: Tensor) -> Tensor:
        """Round to 8-bit levels inside the ball, uint8 on the CPU. The center must be 8-bit levels / 255."""
        levels = self.center.cpu().double().mul(255).round()
        change = self._rounded_change(pixels.cpu().double() * 255 - levels)
        return (levels + change).clamp(0, 255).to(torch.uint8)

    def _rounded_change(self, change: Tensor) -> Tensor:
        """Round a change in levels to whole levels, at most 255 radii from zero."""
        raise NotImplementedError


class LinfBall(Ball):
    """The ball in which every value changes by at most the radius."""

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
    """The ball in which the Euclidean length of the change is at most the radius."""

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
        # Rounding left the ball: move values that were rounded outwards back by one level, those rounded farthest
        # first, until the change is inside. Moving all of them always suffices.
        flat = rounded.flatten()
        lead = flat.abs() - change.flatten().abs()
        outwards = lead.argsort(descending=True)[: int((lead > 0).sum())]
        gains = (2 * flat[outwards].abs() - 1).cumsum(0)
        back = outwards[: int((gains < excess).sum()) + 1]
        flat[back] -= flat[back].sign()
        return flat.view_as(rounded)


BALLS: dict[str, type[Ball]] = {"linf": LinfBall, "l2": L2Ball}


# A bisection ends when its bounds are within 5 % of each other, or negligibly short.
_NEAR, _SHORTEST = 1.05, 1e-6


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal of an attack on a row of logits: the class `index`, or (not targeted) any other."""

    index: int
    is_targeted: bool

    def loss(self, logits: Tensor) -> Tensor:
        """Return the cross-entropy of the class; a targeted attack lowers it, any other raises it."""
        return F.cross_entropy(logits, logits.new_tensor([self.index], dtype=torch.long))

    def is_reached(self, logits: Tensor) -> bool:
        return (int(logits.argmax(1)) == self.index) == self.is_targeted


@dataclass(frozen=True, slots=True)
class BestAttempt:
    """The best image of a search, and the history of the search."""

    pixels: Tensor  # `(1, C, H, W)` float32, inside the ball
    logits: Tensor  # the logits for `pixels`, `(1, classes)`, without their graph
    levels: Tensor  # `pixels` rounded to 8 bits inside the ball, uint8 on the CPU
    is_success: bool  # whether `pixels` reach the goal
    iterations: int  # number of gradient steps from the start of its run
    losses: tuple[tuple[float, ...], ...]  # of every run, before the first step and after each; in nats
    # n_forward, n_backward: number of passes in all runs
    n_forward: int
    n_backward: int
    n_stuck: int  # number of runs that ended early at a zero gradient
    is_final: bool  # whether the search succeeded; otherwise this is the best failure
    # epsilon, step_size: of its run
    epsilon: float
    step_size: float
    best_run: int = 0  # its run, from 0
    # For the smallest change, the largest epsilon without success; 0 if none was tried
    not_within: float | None = None


def search(
    predict: Callable[[Tensor], Tensor],
    pixels: Tensor,
    goal: Goal,
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
    near: Tensor | None = None,
    *,
    is_for_file: bool = True,
) -> BestAttempt:
    """Search the ball for an image that reaches the goal; stop at the first that does so in 8 bits, too.

    Otherwise return the best: one that reaches the goal before rounding, else the one with the best loss.

    Args:
        predict: the model, from pixels in 0..1, `(1, C, H, W)`, to its logits, `(1, classes)`.
        pixels: `(1, C, H, W)` float32, 8-bit levels / 255.
        tick: called after every step.
        near: where the run starts instead, moved into the ball.
        is_for_file: whether the goal has to be reached after rounding.
    """
    ball = BALLS[request.norm](pixels, request.epsilon)
    start = pixels
    if near is not None:
        start = ball.nearest(near)
    elif request.method == "pgd":
        start = ball.random(torch.Generator().manual_seed(request.seed))
    losses: list[float] = []
    best: tuple[tuple[bool, bool, float], _Point] | None = None
    n_rounded = 0

    def rounded(point: _Point) -> Tensor:
        return as_pixels(ball.rounded(point.pixels), pixels.device)

    for point in _climb(predict, ball, start, goal, request):
        tick()
        losses.append(point.loss)
        is_success = goal.is_reached(point.logits)
        is_lasting = is_success
        if is_success and is_for_file:
            is_lasting = goal.is_reached(predict(rounded(point)))
            n_rounded += 1
        rank = is_lasting, is_success, -point.loss if goal.is_targeted else point.loss
        if best is None or rank > best[0]:
            best = rank, point
        if is_lasting:
            break
    assert best is not None
    (is_final, is_success, _), point = best
    is_stuck = not is_final and len(losses) <= request.steps
    return BestAttempt(
        pixels=point.pixels,
        logits=point.logits,
        levels=ball.rounded(point.pixels),
        is_success=is_success,
        iterations=point.iteration,
        losses=(tuple(losses),),
        n_forward=len(losses) + n_rounded,
        n_backward=len(losses) - 1 + is_stuck,
        n_stuck=int(is_stuck),
        is_final=is_final,
        epsilon=request.epsilon,
        step_size=request.step_size,
    )


def smallest(
    predict: Callable[[Tensor], Tensor],
    pixels: Tensor,
    goal: Goal,
    request: AttackRequest,
    tick: Callable[[], object] = lambda: None,
) -> BestAttempt:
    """Search for the nearest image that reaches the goal by bisection over epsilon, and for the nearest 8-bit file.

    Epsilon is doubled until a search succeeds, then bisected geometrically until success and failure are within
    5 %. A run starts from the nearest image so far, moved into the smaller ball; `fgsm` always starts from the
    original. The file is searched for in the same way, from that length upwards.
    """
    length = BALLS[request.norm].length
    longest = 1.0 if request.norm == "linf" else math.sqrt(pixels.numel())
    runs: list[BestAttempt] = []

    def bisect(
        radius: float, low: float, near: Tensor | None, *, is_for_file: bool
    ) -> tuple[BestAttempt | None, float]:
        """Return the nearest success and the largest radius without one."""
        best, high = None, longest
        unit = 1 / 255 if is_for_file and request.norm == "linf" else 0.0
        while best is None or high > max(low * _NEAR, _SHORTEST):
            if unit:
                radius = unit * math.ceil(radius / unit - 1e-6)
                if best is not None and radius >= high:
                    break
            start = None if request.method == "fgsm" else near
            attempt = search(
                predict, pixels, goal, request.within(radius), tick, start, is_for_file=is_for_file
            )
            runs.append(attempt)
            if attempt.is_final:
                end = as_pixels(attempt.levels, pixels.device) if is_for_file else attempt.pixels
                best, near, high = attempt, attempt.pixels, min(radius, length(end - pixels))
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
    return replace(
        best,
        levels=(file or best).levels,
        best_run=next(n for n, run in enumerate(runs) if run is best),
        losses=tuple(run.losses[0] for run in runs),
        n_forward=sum(run.n_forward for run in runs),
        n_backward=sum(run.n_backward for run in runs),
        n_stuck=sum(run.n_stuck for run in runs),
        not_within=low,
    )


@dataclass(frozen=True, slots=True)
class _Point:
    """The image after `iteration` steps."""

    iteration: int
    pixels: Tensor
    logits: Tensor  # without their graph
    loss: float


def _climb(
    predict: Callable[[Tensor], Tensor], ball: Ball, start: Tensor, goal: Goal, request: AttackRequest
) -> Iterator[_Point]:
    """Yield the start and the image after each step; stop where the gradient is exactly zero."""
    sign = -1.0 if goal.is_targeted else 1.0
    pixels = start
    for iteration in range(request.steps + 1):
        pixels = pixels.detach().requires_grad_()
        logits = predict(pixels)
        loss = goal.loss(logits)
        if not loss.isfinite():
            raise CannotRunError(
                f"the loss is {float(loss.detach())} after {iteration} steps of the attack",
                "modelscope grads ...   shows where gradients are lost",
            )
        yield _Point(iteration, pixels.detach(), logits.detach(), float(loss.detach()))
        if iteration == request.steps:
            return
        gradient = _gradient(loss, pixels)
        if not gradient.any():
            return
        with torch.no_grad():
            pixels = ball.nearest(pixels + sign * request.step_size * ball.steepest(gradient))


def _gradient(loss: Tensor, pixels: Tensor) -> Tensor:
    """Return the gradient with respect to the pixels; no `.grad` is accumulated."""
    gradient = None
    if loss.requires_grad:
        with backward_pass():
            (gradient,) = torch.autograd.grad(loss, pixels, allow_unused=True)
    if gradient is None:
        raise CannotRunError(
            "no gradient flows from the model's scores to the image: its forward runs under no_grad, "
            "detaches, rounds, "
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
    """Return 8-bit levels as float32 pixels in 0..1 on a device."""
    return levels.to(device, torch.float32) / 255
