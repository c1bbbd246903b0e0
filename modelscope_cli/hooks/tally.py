"""What a hook did: counted on the device, read when all is over."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


def differs(before: Tensor, after: Tensor) -> Tensor:
    """Return which values differ; NaN equals NaN."""
    is_new = before != after
    if before.is_floating_point() or before.is_complex():
        is_new &= ~(before.isnan() & after.isnan())
    return is_new


@dataclass(slots=True)
class Tally:
    """Counts for one hook.

    Attributes:
        fired_at: the calls it fired at, as `(layer name, call index)`.
        left_alone: why a tensor was passed on as it was.
        moved: what else changed because the user's function worked in place, each once, in order.
        saved: copies by label, still on their device.
    """

    fired: int = 0
    numel: int = 0
    fired_at: set[tuple[str, int]] = field(default_factory=set)
    left_alone: str | None = None
    moved: dict[str, None] = field(default_factory=dict)
    saved: dict[str, Tensor] = field(default_factory=dict)
    _changed: dict[torch.device, Tensor] = field(default_factory=dict)
    _largest: dict[torch.device, Tensor] = field(default_factory=dict)

    def fire(self, *at: tuple[str, int]) -> None:
        """Count one firing, at a call; a parameter's gradient belongs to every layer around it that is meant."""
        self.fired += 1
        self.fired_at.update(at)

    @torch.no_grad()
    def compare(self, before: Tensor, after: Tensor) -> None:
        """Count what became of a tensor; NaN that stays NaN did not change."""
        self.numel += before.numel()
        if before is after or not before.numel() or before.layout is not torch.strided:
            return
        is_new = differs(before, after)
        wide = torch.promote_types(before.dtype, torch.float32)
        gap = (after.to(wide) - before.to(wide)).abs().nan_to_num(0.0, posinf=0.0)
        device = before.device
        largest, n_changed = gap.amax().double(), torch.count_nonzero(is_new)
        if device in self._changed:
            largest = torch.maximum(largest, self._largest[device])
            n_changed = n_changed + self._changed[device]
        self._largest[device], self._changed[device] = largest, n_changed

    @property
    def max_abs_difference(self) -> float | None:
        """Largest |after - before| over values finite before and after; None where nothing was compared."""
        if not self.numel:
            return None
        return max((float(largest) for largest in self._largest.values()), default=0.0)

    @property
    def changed_fraction(self) -> float | None:
        return sum(int(n) for n in self._changed.values()) / self.numel if self.numel else None
