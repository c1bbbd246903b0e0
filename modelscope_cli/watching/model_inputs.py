"""The inputs of a model, that of its first layer with weights, and thumbnails of its first images."""

import base64
import contextlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from modelscope_cli.analysis.statistics.moments import RANGE, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.output_files import write_bytes
from modelscope_cli.watching.log import read_log

FILE = "inputs.png"
_MOST, _SIDE, _GAP = 8, 64, 2  # images, and pixels


class FirstImages:
    """Thumbnails of one batch, on its device until they are fetched."""

    def __init__(self, x: Tensor) -> None:
        """Keep every n-th pixel of a few images of `x`, `(N, C, H, W)` with 1 or 3 channels, at hook time."""
        stride = -(-max(x.shape[2:]) // _SIDE)
        self._kept = x.detach()[:_MOST, :, ::stride, ::stride].clone()

    @staticmethod
    def are_in(x: Tensor) -> bool:
        """Tell whether a tensor looks like images."""
        return x.ndim == 4 and x.shape[1] in (1, 3) and min(x.shape[2:]) > 3

    def png(self) -> bytes:
        """Return them side by side; the lowest value is black and the highest white."""
        from PIL import Image

        values = self._kept.to("cpu", torch.float32).nan_to_num()
        low, high = values.min(), values.max()
        levels = ((values - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)
        levels = levels.expand(-1, 3, -1, -1)
        n, _, height, width = levels.shape
        sheet = torch.full((height, n * (width + _GAP) - _GAP, 3), 127, dtype=torch.uint8)
        for place, image in enumerate(levels):
            left = place * (width + _GAP)
            sheet[:, left : left + width] = image.permute(1, 2, 0)
        data = io.BytesIO()
        Image.frombytes("RGB", (sheet.shape[1], height), bytes(sheet.flatten().tolist())).save(data, "PNG")
        return data.getvalue()


def save_first_images(log: Path, folder: Path) -> None:
    """Write the images that a log holds, if any, to `FILE`."""
    for kind, entry in read_log(log):
        if kind == "images":
            # A log that another program has written to.
            with contextlib.suppress(ValueError, TypeError, KeyError):
                write_bytes(folder / FILE, base64.b64decode(entry["png"], validate=True))
            return
        if kind == "end" or (kind == "step" and entry.get("step", 0) > 0):
            return


@dataclass(frozen=True, slots=True)
class EnteringKey:
    """An input: an argument of the model (`input`, `input#1`), or of its first layer with weights (its name)."""

    name: str
    type: str  # the class of the first layer with weights; empty for an argument of the model
    shape: tuple[int, ...]  # of the first such tensor; batches may differ
    dtype: str
    is_computed: bool  # whether gradients flow through it to another model


@dataclass(slots=True)
class EnteringSums:
    """Sums over the passes of a step; results stay on the device until the step ends."""

    moments: Moments | None = None
    _pending: list[tuple[Callable[[], Moments], Tensor]] = field(default_factory=list)
    batch: int = 0
    is_alike: bool = True
    images: FirstImages | None = None

    def add(self, x: Tensor, *, is_shown: bool = False) -> None:
        """Add a tensor, at hook time: later operations may overwrite it.

        Args:
            is_shown: keep a few images of it, if it looks like images.
        """
        if is_shown and self.images is None and FirstImages.are_in(x):
            self.images = FirstImages(x)
        finish = reduce_tensor(x, None, RANGE)
        alike = (x == x[:1]).all() if x.ndim > 1 and len(x) > 1 else torch.zeros((), dtype=torch.bool)
        self._pending.append((finish, alike))
        self.batch = max(self.batch, len(x) if x.ndim else 1)

    def row(self) -> "Entering":
        """Fetch the numbers after the step."""
        for finish, alike in self._pending:
            moments = finish()
            self.moments = moments if self.moments is None else self.moments.merge(moments)
            self.is_alike = self.is_alike and bool(alike)
        self._pending = []
        assert self.moments is not None
        return Entering(self.moments, self.batch, self.is_alike, self.images)


@dataclass(frozen=True, slots=True)
class Entering:
    """The inputs between two steps."""

    moments: Moments
    batch: int  # largest number of samples in one pass
    is_alike: bool  # whether every sample of a pass was the same as its first
    images: FirstImages | None = None  # the first of them, in the first step

    def to_list(self) -> list[float | int | bool]:
        m = self.moments
        return [m.n, m.mean, m.m2, m.low, m.high, m.n_nan + m.n_inf, self.batch, self.is_alike]
