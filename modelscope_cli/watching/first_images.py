"""Thumbnails of the first input images, after normalisation and augmentation."""

import base64
import contextlib
import io
from pathlib import Path

import torch
from torch import Tensor

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
