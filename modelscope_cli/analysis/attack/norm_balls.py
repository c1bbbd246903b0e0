"""The pictures an attack may choose from: within a radius of the original, and within black and white."""

import torch
from torch import Tensor


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
