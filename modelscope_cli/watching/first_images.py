"""The first images that a model is given, small, to be looked at: as it sees them, so normalised and augmented."""

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
    """Images of one batch; what is kept of them stays on the device until it is asked for."""

    def __init__(self, x: Tensor) -> None:
        """Keep a few images of `x`, `(N, C, H, W)` of 1 or 3 channels, every few pixels one, at hook time."""
        stride = -(-max(x.shape[2:]) // _SIDE)
        self._kept = x.detach()[:_MOST, :, ::stride, ::stride].clone()

    @staticmethod
    def are_in(x: Tensor) -> bool:
        """Tell whether a tensor looks like images."""
        return x.ndim == 4 and x.shape[1] in (1, 3) and min(x.shape[2:]) > 3

    def png(self) -> bytes:
        """Return them side by side; the least of the values is black and the largest white."""
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
