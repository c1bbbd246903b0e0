"""The operations that every kind of output supports."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.target_spec import TargetSpec
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.records.predict import Guess

Leaves = tuple[tuple[str, Tensor], ...]
"""Every floating point tensor of an output with its path, which is empty for a lone tensor."""

# Names of scores: `logits` as in transformers, `out` of torchvision's segmentation, one of CLIP's two.
_SCORES = ("logits", "out", "logits_per_image", "scores", "prediction", "predictions", "pred")
# Prefixes of the names of features, as opposed to scores of classes.
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
# The auxiliary heads of torchvision's models, used in training only; and scores of which each row is a text.
AUXILIARY = ("aux", "aux_logits", "aux_logits1", "aux_logits2", "logits_per_text")


def leaves_of(output: Any) -> Leaves:
    """Return the floating point tensors of an output in their order, without empty ones."""
    return tuple(
        (path, tensor)
        for path, tensor in tensors_in(output)
        if tensor.is_floating_point() and tensor.numel() > 0
    )


def main_leaf(leaves: Sequence[tuple[str, Tensor]]) -> tuple[str, Tensor]:
    """Return the main output.

    That is the tensor with a name of scores; else the first `(N, C)` that is not named as features or boxes; else
    the first `(N, C)`; else the first tensor.
    """
    named = [leaf for leaf in leaves if last_name(leaf[0]) in _SCORES and leaf[1].ndim > 1]
    named.sort(key=lambda leaf: _SCORES.index(last_name(leaf[0])))
    rows = [leaf for leaf in leaves if leaf[1].ndim == 2 and leaf[1].shape[1] > 1]
    scores = [leaf for leaf in rows if not is_features(leaf[0]) and last_name(leaf[0]) not in AUXILIARY]
    return next(iter((*named, *scores, *rows, *leaves)))


def is_features(path: str) -> bool:
    """Whether a name denotes features or boxes: `pooler_output`, `boxes`."""
    name = last_name(path).lower()
    return name.startswith(_FEATURES) or name.endswith(("embeds", "boxes"))


def last_name(path: str) -> str:
    """Return the last part of a path, the name of the tensor itself."""
    return path.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class FollowedScore:
    """The number per image that is followed while the model or the image is changed."""

    words: str  # description: `3 (cat)`, `box 0: dog`
    # The number in another output for the same images, `(N,)`, with its graph
    score: "Callable[[OutputPart], Tensor]"
    # The same as 0..1; None where there is no such number
    probability: "Callable[[OutputPart], Tensor] | None" = None
    classes: tuple[int, ...] | None = None  # the class of each image; None if it has none
    is_at_peak: bool = False  # whether no other output has a higher score, so that its gradient is zero
    name: str = ""  # what the number is, if it is not the `score_name` of the output


class OutputPart(ABC):
    """The output for N images."""

    kind: ClassVar[str]
    score_name: ClassVar[str]
    """The name of the score that is followed: `logit`, `score`, `cosine similarity`."""

    @property
    @abstractmethod
    def words(self) -> str:
        """A description: `scores of 10 classes`."""

    @property
    def n_classes(self) -> int | None:
        """Number of scored classes; None for other kinds."""
        return None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def settled(self) -> Self:
        """Return the same in float32 on the CPU, without its graph."""

    @abstractmethod
    def tensor(self) -> Tensor:
        """Return all numbers, `(N, ...)`."""

    @abstractmethod
    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        """Return what `aim` means in this output, which is that of the unchanged model."""

    def guesses(
        self, n: int | None, categories: Sequence[str] | None, activation: str = "softmax"
    ) -> tuple[tuple[Guess, ...], ...] | None:
        """Return the `n` best guesses for each image, or all, best first; None for what is not a prediction.

        Logits become scores by `softmax`, one class of all, or `sigmoid`, each class on its own.
        """
        return None

    def drawn(self, size: Sequence[int], most: int) -> Tensor | None:
        """Return maps of the first `most` images in the size of the input, `(n, H, W)` or `(n, D, H, W)`.

        None for an output that is not a map.
        """
        return None


class Scores(OutputPart):
    """Scores of classes, of images or of pixels, which can be compared with those of a changed model.

    Every comparison has one value per image, `(N,)`.
    """

    @abstractmethod
    def best_classes(self) -> list[int]:
        """Return the class that `guesses` names first, of every image."""

    @abstractmethod
    def changed(self, after: Self) -> Tensor:
        """Return the share of decisions that differ in another output, 0..1."""

    @abstractmethod
    def divergence(self, after: Self) -> Tensor:
        """Return KL(this || after) in nats, a mean over the decisions of an image."""

    def difference(self, after: Self) -> Tensor:
        """Return after - before of all numbers, `(N, numbers)`."""
        return after.tensor().double().flatten(1) - self.tensor().double().flatten(1)


def settle(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 on the CPU without its graph."""
    return tensor.detach().to("cpu", torch.float32)
