"""Scores of classes: for each image, and for each pixel of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, OutputPart, Scores, settle
from modelscope_cli.analysis.outputs.target_spec import (
    PREDICTED,
    TargetSpec,
    class_index,
    label_of_class,
    means_nothing,
    name_class,
)
from modelscope_cli.analysis.outputs.vectors import resized
from modelscope_cli.analysis.predictions.scores import kl_divergence, probabilities, same_best, top_guesses
from modelscope_cli.errors import UsageError
from modelscope_cli.records.predict import Guess


@dataclass(frozen=True, slots=True)
class _Logits(Scores):
    """Logits, `(N, C, ...)`."""

    logits: Tensor
    ending: str = ""  # the `softmax` or `sigmoid` with which the model ends, undone in `logits`

    @property
    def n_classes(self) -> int:
        return self.logits.shape[1]

    def __len__(self) -> int:
        return len(self.logits)

    def settled(self) -> Self:
        return replace(self, logits=settle(self.logits))

    def tensor(self) -> Tensor:
        return self.logits


@dataclass(frozen=True, slots=True)
class ClassScores(_Logits):
    """One row of logits an image, `(N, C)`."""

    has_several: bool = False  # multi-label: each class is on from a logit above 0
    kind: ClassVar[str] = "classes"
    score_name: ClassVar[str] = "logit"

    @property
    def words(self) -> str:
        if self.n_classes == 1:
            return "the score of one class"
        each = ", each scored independently by a sigmoid" if self.has_several else ""
        return f"scores of {self.n_classes} classes{each}"

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        if aim.kind not in (PREDICTED, "class"):
            raise means_nothing(aim, self.words, "--target predicted   or a class index or label")
        targets = self.logits.detach().argmax(1)
        if aim.kind == "class":
            targets = torch.full_like(targets, class_index(aim.name, self.logits.shape[1], categories))
        classes = tuple(targets.tolist())
        words = name_class(classes[0], categories) if len(set(classes)) == 1 else PREDICTED

        def score(answer: OutputPart) -> Tensor:
            return answer.tensor().gather(1, targets[:, None].to(answer.tensor().device))[:, 0]

        def probability(answer: OutputPart) -> Tensor:
            scores = probabilities(answer.tensor().double(), "sigmoid" if self.has_several else "softmax")
            return scores.gather(1, targets[:, None])[:, 0]

        return FollowedScore(words, score, probability, classes)

    def guesses(
        self, n: int | None, categories: Sequence[str] | None, activation: str = "softmax"
    ) -> tuple[tuple[Guess, ...], ...]:
        return top_guesses(self.logits.float(), n, categories, activation)

    def best_classes(self) -> list[int]:
        return self.logits.argmax(1).tolist()

    def changed(self, after: Self) -> Tensor:
        if self.has_several:
            return ((self.logits > 0) != (after.logits > 0)).double().mean(1)
        return (~same_best(self.logits, after.logits)).double()

    def divergence(self, after: Self) -> Tensor:
        if not self.has_several:
            return kl_divergence(self.logits, after.logits)
        pairs = [torch.stack([part.logits, torch.zeros_like(part.logits)], -1) for part in (self, after)]
        per_class = kl_divergence(*(pair.flatten(0, 1) for pair in pairs))
        return per_class.reshape(self.logits.shape).mean(1)


@dataclass(frozen=True, slots=True)
class PixelScores(_Logits):
    """Logits of every pixel, `(N, C, H, W)`, or voxel, `(N, C, D, H, W)`."""

    kind: ClassVar[str] = "pixels"
    score_name: ClassVar[str] = "mean logit"

    @property
    def words(self) -> str:
        _, classes, *sides = self.logits.shape
        unit = "pixels" if len(sides) == 2 else "voxels"
        return f"scores of {classes} classes for each of {'x'.join(map(str, sides))} {unit}"

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        predicted = self.logits.detach().argmax(1)
        if aim.kind == PREDICTED:
            return _follow_pixels("each pixel's own class", predicted, torch.ones_like(predicted))
        if aim.kind not in ("class", "mask"):
            raise means_nothing(
                aim, self.words, "--target predicted   or mask:CLASS, a class index, or a label"
            )
        index = class_index(aim.name, self.logits.shape[1], categories)
        targets, name = torch.full_like(predicted, index), name_class(index, categories)
        if aim.kind == "class":
            words, pixels = f"{name} in all pixels", torch.ones_like(targets)
        else:
            words, pixels = f"{name} in the pixels that are {name}", (predicted == index).long()
        if not pixels.flatten(1).any(1).all():
            there = ", ".join(name_class(each, categories) for each in predicted.unique().tolist()[:5])
            message = f"'--target {aim.typed}': no pixel is predicted as {name}; predicted classes: {there}"
            raise UsageError(message, f"--target '{aim.name}'   takes its score in all pixels")
        return _follow_pixels(words, targets, pixels, (index,) * len(self))

    def guesses(
        self, n: int | None, categories: Sequence[str] | None, activation: str = "softmax"
    ) -> tuple[tuple[Guess, ...], ...]:
        """Return the classes that cover most of the image; `score` is the mean over the pixels of the class."""
        logits = self.logits.float()
        classes = logits.argmax(1)
        scores = probabilities(logits, activation)
        return tuple(_cover(*image, n, categories) for image in zip(classes, scores, logits, strict=True))

    def drawn(self, size: Sequence[int], most: int) -> Tensor:
        """Return the best class of each pixel, int32."""
        # One image at a time: all classes of all pixels of a batch would be large.
        return torch.cat([resized(one, size).argmax(1).int() for one in self.logits[:most].split(1)])

    def best_classes(self) -> list[int]:
        return [int(classes.flatten().bincount().argmax()) for classes in self.logits.argmax(1)]

    def changed(self, after: Self) -> Tensor:
        return (~same_best(self.logits, after.logits)).double().flatten(1).mean(1)

    def divergence(self, after: Self) -> Tensor:
        rows = [part.logits.movedim(1, -1).flatten(1, -2) for part in (self, after)]
        images = zip(*rows, strict=True)  # one at a time: doubles of all would be twice the memory
        return torch.stack([kl_divergence(before, later).mean() for before, later in images])


def logits_of(scores: Tensor, ending: str) -> Tensor:
    """Return scores as logits: undo the `sigmoid` or `softmax` if the model ends with one."""
    if ending == "sigmoid":
        return scores.logit(1e-6)
    return scores.clamp_min(1e-12).log() if ending == "softmax" else scores


def pixel_scores(scores: Tensor, ending: str = "") -> PixelScores:
    """Return scores of pixels, `(N, C, ...)`, after `ending`, as logits.

    One channel becomes two classes, the second with this logit and the first with 0: their softmax is the sigmoid.
    """
    scores = logits_of(scores, ending)
    whole = torch.cat([torch.zeros_like(scores), scores], 1) if scores.shape[1] == 1 else scores
    return PixelScores(whole, ending)


def _follow_pixels(
    words: str, targets: Tensor, pixels: Tensor, classes: tuple[int, ...] | None = None
) -> FollowedScore:
    """Follow the mean of the targets' logits over some pixels, 1 where they count; both `(N, H, W)`."""
    n_pixels = pixels.flatten(1).sum(1)

    def mean(values: Tensor) -> Tensor:
        of_targets = values.gather(1, targets[:, None].to(values.device))[:, 0]
        return (of_targets * pixels.to(values.device)).flatten(1).sum(1) / n_pixels.to(values.device)

    return FollowedScore(
        words,
        lambda answer: mean(answer.tensor()),
        lambda answer: mean(F.softmax(answer.tensor(), 1)),
        classes,
    )


def _cover(
    classes: Tensor, scores: Tensor, logits: Tensor, n: int | None, categories: Sequence[str] | None
) -> tuple[Guess, ...]:
    present, counts = classes.unique(return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:n]
    return tuple(
        Guess(
            index,
            label_of_class(index, categories),
            float(scores[index][classes == index].mean()),
            float(logits[index][classes == index].mean()),
            share=count / classes.numel(),
        )
        for index, count in zip(present[order].tolist(), counts[order].tolist(), strict=True)
    )
