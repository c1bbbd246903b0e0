"""What a detection model needs beside its pictures in train mode: something to find in each of them."""

import torch
from torch import Tensor, nn

from modelscope_cli.records.run import Arguments

IN_WORDS = "one object in every image, its box the middle half"


def training_args(model: nn.Module, family: str, args: Arguments, label: int = 1) -> Arguments:
    """Return the arguments of a forward in train mode: for detection, the pictures and a synthetic target each.

    A target has one box over the middle half of each side, with `label`; the mask fills it, and the keypoints
    lie on its diagonal, all visible. Other families need nothing more than in eval mode.
    """
    if family != "detection" or len(args) != 1:
        return args
    (images,) = args.values() if isinstance(args, dict) else args
    n_keypoints = _count_keypoints(model)
    targets = [_target(image, label, n_keypoints) for image in images]
    return {**args, "targets": targets} if isinstance(args, dict) else (images, targets)


def _target(image: Tensor, label: int, n_keypoints: int) -> dict[str, Tensor]:
    height, width = image.shape[-2:]
    top, left, bottom, right = height // 4, width // 4, height - height // 4, width - width // 4
    box = torch.tensor([[left, top, right, bottom]], dtype=torch.float32, device=image.device)
    mask = torch.zeros(1, height, width, dtype=torch.uint8, device=image.device)
    mask[:, top:bottom, left:right] = 1
    steps = torch.linspace(0.1, 0.9, n_keypoints, device=image.device)[:, None]
    places = box[0, :2] + steps * (box[0, 2:] - box[0, :2])
    keypoints = torch.cat([places, torch.ones_like(steps)], dim=1)[None]
    return {
        "boxes": box,
        "labels": torch.tensor([label], device=image.device),
        "masks": mask,
        "keypoints": keypoints,
    }


def _count_keypoints(model: nn.Module) -> int:
    predictor = getattr(getattr(model, "roi_heads", None), "keypoint_predictor", None)
    return getattr(getattr(predictor, "kps_score_lowres", None), "out_channels", 1)
