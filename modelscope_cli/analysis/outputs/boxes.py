"""Boxes around objects, as detection models return them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torchvision.ops import batched_nms, box_convert, box_iou

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, OutputPart, Scoring, settle
from modelscope_cli.analysis.outputs.target_spec import (
    PREDICTED,
    TargetSpec,
    class_index,
    label_of_class,
    means_nothing,
    name_class,
)
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.predict import Guess

# Lowest score of a detected box, and lowest overlap of two boxes of the same object: as in PASCAL VOC
# (Everingham et al. 2010, section 4.2).
_FOUND = 0.5
_SAME = 0.5


@dataclass(frozen=True, slots=True)
class ImageBoxes:
    """The boxes of one image, best first.

    Attributes:
        corners: `(K, 4)`, x0, y0, x1, y1 in pixels of the input image.
        scores: `(K,)`, 0..1. labels: `(K,)`, integers.
    """

    corners: Tensor
    scores: Tensor
    labels: Tensor

    def sorted(self) -> "ImageBoxes":
        """Return the same, best first."""
        order = self.scores.detach().argsort(descending=True, stable=True)
        return ImageBoxes(self.corners[order], self.scores[order], self.labels[order])


@dataclass(frozen=True, slots=True)
class Boxes(OutputPart):
    """The boxes of every image."""

    images: tuple[ImageBoxes, ...]
    kind: ClassVar[str] = "boxes"
    score_name: ClassVar[str] = "score"

    @property
    def words(self) -> str:
        n_boxes = sum(len(image.scores) for image in self.images)
        return "no box" if n_boxes == 0 else f"{n_boxes} box" + ("es" if n_boxes > 1 else "")

    def __len__(self) -> int:
        return len(self.images)

    def settled(self) -> Self:
        return type(self)(
            tuple(
                ImageBoxes(settle(one.corners), settle(one.scores), one.labels.cpu()) for one in self.images
            )
        )

    def tensor(self) -> Tensor:
        """Return the scores, `(N, K)`; images with fewer boxes are padded with zeros."""
        return torch.nn.utils.rnn.pad_sequence([one.scores for one in self.images], batch_first=True)

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        if aim.kind == "class":
            index = class_index(aim.name, None, categories)

            def best(answer: OutputPart) -> Tensor:
                assert isinstance(answer, Boxes)
                return torch.stack([_best(one.scores[one.labels == index]) for one in answer.images])

            words = f"the best box of {name_class(index, categories)}"
            return FollowedScore(words, best, best, (index,) * len(self))
        if aim.kind not in (PREDICTED, "box"):
            raise means_nothing(aim, "boxes", "--target box:0   or a class index, or a label")
        number = aim.index[0] if aim.kind == "box" else 0
        most = max((len(one.scores) for one in self.images), default=0)
        if number >= most:
            raise _no_such_box(number, most)
        boxes = [_detached(one, number) for one in self.images]
        labels = tuple(int(one.labels) for one in boxes if one is not None)

        def score(answer: OutputPart) -> Tensor:
            assert isinstance(answer, Boxes)
            return torch.stack([_likeness(*pair) for pair in zip(boxes, answer.images, strict=True)])

        names = {name_class(label, categories) for label in labels}
        words = f"box {number}: {names.pop()}" if len(names) == 1 else f"box {number} of each image"
        return FollowedScore(words, score, score, labels)

    def guesses(
        self, n: int | None, categories: Sequence[str] | None, scoring: Scoring
    ) -> tuple[tuple[Guess, ...], ...]:
        """Return the best boxes; they have a score and no logit."""
        return tuple(
            tuple(
                Guess(label, label_of_class(label, categories), score, None, box=tuple(corners))
                for label, score, corners in zip(
                    one.labels[:n].tolist(), one.scores[:n].tolist(), one.corners[:n].tolist(), strict=True
                )
            )
            for one in self.images
        )

    def best_classes(self) -> list[int]:
        return [int(one.labels[0]) for one in self.images if len(one.labels)]

    def changed(self, after: Self) -> Tensor:
        """Return the share of the boxes detected before or after without a match in the other output.

        Detected is a score of 0.5 or more; matches have one label and overlap by half.
        """
        return torch.tensor(
            [_unmatched(*pair) for pair in zip(self.images, after.images, strict=True)], dtype=torch.float64
        )

    def distance(self, after: Self) -> Tensor:
        return torch.stack([change.norm() for change in self._changes(after)])

    def largest_change(self, after: Self) -> Tensor:
        return torch.stack([_best(change.abs()) for change in self._changes(after)])

    def _changes(self, after: Self) -> list[Tensor]:
        """Return the change of score of every box; an unmatched one goes to 0, or comes from it."""
        changes = []
        for was, one in zip(self.images, after.images, strict=True):
            pairs = _partners(was, one)
            lone = [
                image.scores[[number for number in range(len(image.scores)) if number not in taken]]
                for image, taken in ((was, dict(pairs)), (one, {later: was for was, later in pairs}))
            ]
            matched = [one.scores[later] - was.scores[before] for before, later in pairs]
            changes.append(torch.cat([*lone, *(change[None] for change in matched)]).double())
        return changes


def boxes_of(images: Sequence[Mapping[str, Tensor]]) -> Boxes:
    """Read what torchvision's detection models return: boxes, scores and labels of each image."""
    return Boxes(
        tuple(ImageBoxes(image["boxes"], image["scores"], image["labels"]).sorted() for image in images)
    )


# As ultralytics predicts: least score, largest overlap of two boxes of one class, most boxes.
_LEAST_SCORE, _MOST_OVERLAP, _MOST_BOXES = 0.25, 0.7, 300


def boxes_of_yolo(
    found: Tensor, n_classes: int, size: tuple[int, int], *, has_queries: bool, is_final: bool
) -> Boxes:
    """Read the output of a detector of ultralytics, with its thresholds.

    Args:
        found: `(N, 4 + classes + others, places)`, centre, width and height in pixels and one score per class. If
            final, of detectors without suppression, `(N, boxes, 6 + others)`, corners, score, label. With queries,
            as of RT-DETR, `(N, queries, 4 + classes)` in shares of the image.
        size: height and width of the image.
    """
    images = []
    for one in found:
        if is_final:
            best = one[one[:, 4] > _LEAST_SCORE]
            images.append(ImageBoxes(best[:, :4], best[:, 4], best[:, 5].long()).sorted())
            continue
        rows = one if has_queries else one.T
        scores, labels = rows[:, 4 : 4 + n_classes].max(1)
        kept = scores > _LEAST_SCORE
        corners = box_convert(rows[kept, :4], "cxcywh", "xyxy")
        if has_queries:
            corners = corners * corners.new_tensor([size[1], size[0], size[1], size[0]])
            chosen = torch.arange(len(corners), device=corners.device)
        else:
            chosen = batched_nms(corners, scores[kept], labels[kept], _MOST_OVERLAP)[:_MOST_BOXES]
        images.append(ImageBoxes(corners[chosen], scores[kept][chosen], labels[kept][chosen]).sorted())
    return Boxes(tuple(images))


def boxes_of_queries(logits: Tensor, centres: Tensor, size: tuple[int, int], *, has_nothing: bool) -> Boxes:
    """Read the output of DETR-like models.

    Args:
        logits: `(N, queries, C)`. centres: `(N, queries, 4)`, centre, width and height as shares of the image.
        size: height and width of the image.
        has_nothing: whether the last class stands for "no object", so that the scores are a softmax; else every
            class is a sigmoid of its own.
    """
    scores, labels = (logits.softmax(2)[..., :-1] if has_nothing else logits.sigmoid()).max(2)
    scale = centres.new_tensor([size[1], size[0], size[1], size[0]])
    corners = box_convert(centres.flatten(0, 1), "cxcywh", "xyxy").reshape(centres.shape) * scale
    return Boxes(tuple(ImageBoxes(*image).sorted() for image in zip(corners, scores, labels, strict=True)))


def _detached(image: ImageBoxes, number: int) -> ImageBoxes | None:
    """Return one box by itself; None if the image has fewer."""
    if number >= len(image.scores):
        return None
    return ImageBoxes(image.corners[number].detach(), image.scores[number].detach(), image.labels[number])


def _likeness(was: ImageBoxes | None, image: ImageBoxes) -> Tensor:
    """Return the highest score times overlap of the boxes with the same label.

    Petsiuk et al. 2021, "Black-box Explanation of Object Detectors via Saliency Maps", equation 4. 0 where the
    image had no such box.
    """
    if was is None:
        return image.scores.new_zeros(())
    overlap = box_iou(was.corners[None].to(image.corners), image.corners.detach())[0]
    return _best((image.scores * overlap)[image.labels == was.labels])


def _best(scores: Tensor) -> Tensor:
    """Return the largest, or 0 where there is none."""
    return scores.max() if len(scores) else scores.new_zeros(())


def _unmatched(before: ImageBoxes, after: ImageBoxes) -> float:
    detected = [_found(before), _found(after)]
    n_boxes = sum(len(image.scores) for image in detected)
    return 1 - 2 * len(_partners(*detected)) / n_boxes if n_boxes else 0.0


def _found(image: ImageBoxes) -> ImageBoxes:
    is_detected = image.scores >= _FOUND
    return ImageBoxes(image.corners[is_detected], image.scores[is_detected], image.labels[is_detected])


def _partners(before: ImageBoxes, after: ImageBoxes) -> list[tuple[int, int]]:
    """Pair boxes of one label that overlap, each with the best unmatched one, the highest score first."""
    overlap = box_iou(before.corners, after.corners) * (before.labels[:, None] == after.labels)
    pairs = []
    for number, row in enumerate(overlap):
        if len(row) and float(row.max()) >= _SAME:
            partner = int(row.argmax())
            pairs.append((number, partner))
            overlap[:, partner] = 0
    return pairs


def _no_such_box(number: int, n_boxes: int) -> Exception:
    if n_boxes == 0:
        return CannotRunError(
            "the model detects no box in the image, so there is none to explain",
            "--target CLASS   takes the best box of a class, detected or not",
        )
    return UsageError(
        f"'--target box:{number}': the model finds {n_boxes} boxes, numbered from 0, the best first",
        f"--target box:{n_boxes - 1}",
    )
