"""The tensors of an output, and which of them is the main one."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from modelscope_cli.hooks.layers import tensors_in

Leaves = tuple[tuple[str, Tensor], ...]
"""Every floating point tensor of an output with its path, which is empty for a lone tensor."""

# Names under which scores are returned: transformers' and most people's `logits`, `out` of torchvision's
# segmentation, one of CLIP's two.
_SCORES = ("logits", "out", "logits_per_image", "scores", "prediction", "predictions", "pred")
# Beginnings of names under which a network returns what it makes of an image, and not scores of classes.
_FEATURES = (
    "embed",
    "feature",
    "hidden",
    "last_hidden",
    "pooler",
    "pooled",
    "image_embed",
    "text_embed",
    "box",
)
# The auxiliary heads of torchvision's models, which serve the training.
AUXILIARY = ("aux", "aux_logits", "aux_logits1", "aux_logits2")


def leaves_of(output: Any) -> Leaves:
    """Return the floating point tensors of an output in their order; empty ones say nothing and are left out."""
    return tuple(
        (path, tensor)
        for path, tensor in tensors_in(output)
        if tensor.is_floating_point() and tensor.numel() > 0
    )


def main_leaf(leaves: Sequence[tuple[str, Tensor]]) -> tuple[str, Tensor]:
    """Return the one that a person would call the output.

    That is the one named as scores are; else the first row of scores for each image, `(N, C)`, that is not named
    as features or boxes are; else the first row of anything; else the first of all.
    """
    named = [leaf for leaf in leaves if last_name(leaf[0]) in _SCORES and leaf[1].ndim > 1]
    named.sort(key=lambda leaf: _SCORES.index(last_name(leaf[0])))
    rows = [leaf for leaf in leaves if leaf[1].ndim == 2 and leaf[1].shape[1] > 1]
    scores = [leaf for leaf in rows if not is_features(leaf[0]) and last_name(leaf[0]) not in AUXILIARY]
    return next(iter((*named, *scores, *rows, *leaves)))


def is_features(path: str) -> bool:
    """Whether a tensor is named as what a network makes of an image, or finds in it: `pooler_output`, `boxes`."""
    name = last_name(path).lower()
    return name.startswith(_FEATURES) or name.endswith(("embeds", "boxes"))


def last_name(path: str) -> str:
    """Return the last part of a path, the name of the tensor itself."""
    return path.rpartition(".")[2]
