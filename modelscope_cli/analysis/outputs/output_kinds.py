"""What one part of an output says of each image: the operations that every kind of output has."""

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


@dataclass(frozen=True, slots=True)
class Scoring:
    """How scores are made of logits: `softmax`, one class of all, or `sigmoid`, each on its own."""

    activation: str = "softmax"
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class FollowedScore:
    """The one number of every image that is followed while the model or the image is changed.

    Attributes:
        words: what it is, for a person: `3 (cat)`, `box 0: dog`.
        score: of another answer to the same images, `(N,)`, with its graph; more means more of it.
        probability: the same as 0..1; None where there is no such number.
        classes: the class of each image; None where it is not about a class of an image.
    """

    words: str
    score: "Callable[[OutputPart], Tensor]"
    probability: "Callable[[OutputPart], Tensor] | None" = None
    classes: tuple[int, ...] | None = None


class OutputPart(ABC):
    """What is said of N images.

    Every figure that compares has one value an image, `(N,)`, and is None where the kind has no such figure.
    """

    kind: ClassVar[str]
    score_name: ClassVar[str]
    """What the number that is followed is: `logit`, `score`, `cosine similarity`."""

    @property
    @abstractmethod
    def words(self) -> str:
        """What it is, for a person: `scores of 10 classes`."""

    @property
    def n_classes(self) -> int | None:
        """How many classes are scored; None where that is not what it is."""
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
        """Return what `aim` means here; the answer it is asked of is that of the unchanged model."""

    def guesses(
        self, n: int | None, categories: Sequence[str] | None, scoring: Scoring
    ) -> tuple[tuple[Guess, ...], ...] | None:
        """Return the `n` best guesses for each image, or all, best first; None for what is not a prediction."""
        return None

    def best_classes(self) -> list[int]:
        """Return the class that `guesses` names first, of every image that has one."""
        return []

    def changed(self, after: Self) -> Tensor | None:
        """Return the share of decisions that another answer makes otherwise, 0..1."""
        return None

    def divergence(self, after: Self) -> Tensor | None:
        """Return KL(this || after) in nats, a mean over the decisions of an image."""
        return None

    def distance(self, after: Self) -> Tensor:
        """Return the Euclidean distance of all numbers."""
        return self._difference(after).norm(dim=1)

    def largest_change(self, after: Self) -> Tensor:
        """Return the largest |after - before| of any number."""
        return self._difference(after).abs().amax(1)

    def is_finite(self) -> bool:
        """Whether there is neither NaN nor infinity in it."""
        return bool(self.tensor().isfinite().all())

    def _difference(self, after: Self) -> Tensor:
        return after.tensor().double().flatten(1) - self.tensor().double().flatten(1)


def settle(tensor: Tensor) -> Tensor:
    """Return a tensor in float32 on the CPU without its graph."""
    return tensor.detach().to("cpu", torch.float32)
