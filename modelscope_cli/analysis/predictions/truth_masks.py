"""Masks: what is true of every pixel of an image."""

from functools import lru_cache
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import decode_mask, upright_size
from modelscope_cli.inputs.listing import ListedImage
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.inputs.truth import GivenTruth, Words

UNKNOWN = 255  # of a pixel: nobody knows, as in the masks of Pascal VOC; with more classes it is one of them


class Masks:
    """Reads the mask of an image and lays the prediction over it."""

    def __init__(self, truth: GivenTruth, plan: Preprocessing | None, n_classes: int) -> None:
        """Raises: CannotRunError: folders, or tensors, have no masks (exit 4)."""
        if truth.is_folders or plan is None:
            what = "tensors" if plan is None else "folders"
            message = f"the model predicts a class for every pixel, and for {what} no masks are known"
            raise CannotRunError(message, "--truth FILE   with lines of 'image,mask.png'")
        self._root, self._plan, self._n_classes = truth.root, plan, n_classes
        self._is_whole = lru_cache(maxsize=64)(self._sees_all)

    def pixels(self, logits: Tensor, words: Words, image: str) -> tuple[Tensor, Tensor]:
        """Return what is true and what is predicted of the pixels whose class is known, `(n,)` int64 each.

        The scores are resized to the mask, bilinearly, as they are where a segmentation is published.

        Args:
            logits: of one image, `(classes, H, W)`.

        Raises:
            CannotRunError: the mask cannot be read, or is not one of this image and model (exit 4).
        """
        if len(words) != 1 or not isinstance(words[0], str):
            raise CannotRunError(
                f"the truth of '{image}' is not the path of one mask", "write lines of 'image,mask.png'"
            )
        path = self._root / words[0]
        mask = decode_mask(path)
        self._check(mask, path, image)
        resized = F.interpolate(logits[None], tuple(mask.shape), mode="bilinear", align_corners=False)
        best = resized[0].argmax(0)
        is_known = mask < self._n_classes
        return mask[is_known], best[is_known]

    def _check(self, mask: Tensor, path: Path, image: str) -> None:
        height, width = mask.shape
        size = upright_size(ListedImage(image)) if Path(image).is_file() else (width, height)
        if size != (width, height):
            message = f"mask '{path}' is {width} x {height}, its image '{image}' {size[0]} x {size[1]}"
            raise CannotRunError(message, "give a mask of the size of its image")
        strange = sorted({int(value) for value in mask.unique() if value >= self._n_classes} - {UNKNOWN})
        if strange:
            message = (
                f"mask '{path}' holds the value {strange[0]}, and the model has {self._n_classes} classes"
            )
            raise CannotRunError(
                message, f"give a mask of 0..{self._n_classes - 1}, and {UNKNOWN} for unknown"
            )
        if not self._is_whole(height, width):
            message = f"the model does not see exactly '{image}', so no mask fits its prediction"
            raise CannotRunError(message, f"--size {height},{width}   keeps the whole image")

    def _sees_all(self, height: int, width: int) -> bool:
        """Tell whether the borders of an image of this size are the borders of what the model sees.

        Two images are prepared for it: one grows brighter from left to right, the other from top to bottom.
        """
        across = torch.linspace(0, 255, width).expand(height, width)
        down = torch.linspace(0, 255, height)[:, None].expand(height, width)
        return self._has_both_ends(across, 1) and self._has_both_ends(down, 0)

    def _has_both_ends(self, ramp: Tensor, dim: int) -> bool:
        image = Image.fromarray(ramp.round().to(torch.uint8).contiguous().numpy()).convert(self._plan.mode)
        seen = self._plan.picture(self._plan.apply(image, "a ramp"))[0].float()
        # A step of the coarser of both, and what rounding and resizing may add.
        room = 255 / min(ramp.shape[dim], seen.shape[dim]) + 3
        first, last = seen.select(dim, 0), seen.select(dim, -1)
        return bool((first < room).all()) and bool((last > 255 - room).all())
