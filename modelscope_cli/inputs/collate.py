"""How pictures become the arguments of one forward, family by family."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, stack

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.default_shape import CLIP_FRAMES
from modelscope_cli.inputs.grammar import by
from modelscope_cli.inputs.listing import Groups, PictureFile

# Pictures per forward where `--batch` is not given.
_FIXED_SIZE_BATCH, _OWN_SIZE_BATCH = 8, 1
Group = Sequence[PictureFile]


def group_pictures(
    family: str, files: Group, batch: int | None, is_fixed_size: bool
) -> tuple[Sequence[Group], list[str]]:
    """Return which pictures go into each forward, and notes on what was decided.

    Video: all files are the frames of one clip. Optical flow: two files are one pair.

    Raises:
        UsageError: exit code 2; not two pictures for optical flow, or `--batch` for one clip or pair.
    """
    if family in {"video", "optical_flow"} and batch not in {None, 1}:
        one = "one clip" if family == "video" else "one pair"
        raise UsageError(f"'--batch {batch}' does not fit: the images are {one}", "--batch 1")
    if family == "optical_flow":
        if len(files) != 2:
            raise UsageError(
                f"optical flow takes two images, not {len(files)}: "
                + ", ".join(f"'{file.name}'" for file in files[:4]),
                "modelscope stats first.png second.png --model raft_small",
            )
        return [files], []
    if family == "video":
        # Evenly spaced, first and last included; fewer files than frames repeat.
        last = len(files) - 1
        frames = [files[round(i * last / (CLIP_FRAMES - 1))] for i in range(CLIP_FRAMES)]
        what = "one image held still" if last == 0 else f"{len(files)} images in order, evenly sampled"
        return [frames], [f"clip: {CLIP_FRAMES} frames of {what}"]
    size = batch or (_FIXED_SIZE_BATCH if is_fixed_size else _OWN_SIZE_BATCH)
    return Groups(files, size), []


def collate(family: str, names: Sequence[str], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """Return the arguments of one forward from prepared `(C, H, W)` pictures.

    `(N, C, H, W)`; video one `(1, C, T, H, W)`; optical flow two `(1, C, H, W)`; detection a list.

    Raises:
        CannotRunError: exit code 4; pictures of different sizes cannot be stacked.
    """
    if family == "detection":
        return (list(tensors),)
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            height, width = tensors[0].shape[-2:]
            raise CannotRunError(
                f"'{name}' becomes {by(tensor.shape[-2:])} but '{names[0]}' {height} x {width}",
                f"--size {height},{width}",
            )
    if family == "video":
        return (stack(tuple(tensors), dim=1)[None],)
    if family == "optical_flow":
        return tuple(tensor[None] for tensor in tensors)
    return (stack(tuple(tensors)),)
