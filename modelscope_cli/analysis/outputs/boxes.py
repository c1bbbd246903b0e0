"""Boxes around objects, as detection models return them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.output_kinds import FollowedScore, OutputPart, settle
from modelscope_cli.analysis.outputs.target_spec import (
    PREDICTED,
    TargetSpec,
    class_index,
    label_of_class,
    means_nothing,
    name_class,
)
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.lean import without_dynamo
from modelscope_cli.records.predict import Guess

with without_dynamo():
    from torchvision.ops import batched_nms, box_convert, box_iou


@dataclass(frozen=True, slots=True)
class ImageBoxes:
    """The boxes of one image, best first."""

    corners: Tensor  # `(K, 4)`, x0, y0, x1, y1 in pixels of the input image
    scores: Tensor  # `(K,)`, 0..1
    labels: Tensor  # `(K,)`, integers

    def __getitem__(self, which: Tensor) -> "ImageBoxes":
        return ImageBoxes(self.corners[which], self.scores[which], self.labels[which])

    def sorted(self) -> "ImageBoxes":
        """Return the same, best first."""
        return self[self.scores.detach().argsort(descending=True, stable=True)]

    def guess(self, number: int, categories: Sequence[str] | None) -> Guess:
        """Return one box as a guess, which has a score and no logit."""
        label = int(self.labels[number])
        return Guess(
            label,
            label_of_class(label, categories),
            float(self.scores[number]),
            None,
            box=tuple(self.corners[number].tolist()),
        )


@dataclass(frozen=True, slots=True)
class Boxes(OutputPart):
    """The boxes of images.

    Attributes:
        of_classes: the highest score of each class at any place, `(classes,)`, of each image, detected or not;
            empty where only boxes are known.
    """

    images: tuple[ImageBoxes, ...]
    of_classes: tuple[Tensor, ...] = ()
    kind: ClassVar[str] = "boxes"
    score_name: ClassVar[str] = "score"

    @property
    def words(self) -> str:
        n_boxes = sum(len(image.scores) for image in self.images)
        if n_boxes == 0 and self.of_classes:
            best = max(float(scores.max()) for scores in self.of_classes)
            return f"no box: the best score is {best:.3g}, not above {_LEAST_SCORE}"
        return "no box" if n_boxes == 0 else f"{n_boxes} box" + ("es" if n_boxes > 1 else "")

    def __len__(self) -> int:
        return len(self.images)

    def settled(self) -> Self:
        return type(self)(
            tuple(
                ImageBoxes(settle(one.corners), settle(one.scores), one.labels.cpu()) for one in self.images
            ),
            tuple(map(settle, self.of_classes)),
        )

    def tensor(self) -> Tensor:
        """Return the scores, `(N, K)`; images with fewer boxes are padded with zeros."""
        return torch.nn.utils.rnn.pad_sequence([one.scores for one in self.images], batch_first=True)

    def follow(self, aim: TargetSpec, categories: Sequence[str] | None) -> FollowedScore:
        if aim.kind == "class":
            n_classes = len(self.of_classes[0]) if self.of_classes else None
            index = class_index(aim.name, n_classes, categories)
            if not self.of_classes and not any((one.labels == index).any() for one in self.images):
                raise _no_box(f" of {name_class(index, categories)}", is_any_known=False)

            def best(answer: OutputPart) -> Tensor:
                assert isinstance(answer, Boxes)
                if answer.of_classes:
                    return torch.stack([scores[index] for scores in answer.of_classes])
                return torch.stack([_best(one.scores[one.labels == index]) for one in answer.images])

            words = f"the best box of {name_class(index, categories)}"
            return FollowedScore(words, best, best, (index,) * len(self))
        if aim.kind not in (PREDICTED, "box"):
            raise means_nothing(aim, "boxes", "--target box:0   or a class index, or a label")
        number = aim.number
        most = max((len(one.scores) for one in self.images), default=0)
        if not most:
            raise _no_box("", is_any_known=bool(self.of_classes))
        if number >= most:
            found = f"the model finds {most} boxes, numbered from 0, best first"
            message = f"'--target box:{number}': {found}"
            raise UsageError(message, f"--target box:{most - 1}")
        boxes = [_detached(one, number) for one in self.images]
        labels = tuple(int(one.labels) for one in boxes if one is not None)

        def score(answer: OutputPart) -> Tensor:
            assert isinstance(answer, Boxes)
            return torch.stack([_likeness(*pair) for pair in zip(boxes, answer.images, strict=True)])

        names = {name_class(label, categories) for label in labels}
        what = f": class {names.pop()}" if len(names) == 1 else " of each image"
        words = f"box {number} (rank {number + 1}){what}"
        return FollowedScore(words, score, score, labels)

    def guesses(
        self, n: int | None, categories: Sequence[str] | None, activation: str = "softmax"
    ) -> tuple[tuple[Guess, ...], ...]:
        return tuple(
            tuple(one.guess(number, categories) for number in range(len(one.scores))[:n])
            for one in self.images
        )


def boxes_of(images: Sequence[Mapping[str, Tensor]]) -> Boxes:
    """Read what torchvision's detection models return: boxes, scores and labels of each image."""
    return Boxes(
        tuple(ImageBoxes(image["boxes"], image["scores"], image["labels"]).sorted() for image in images)
    )


# As ultralytics predicts: least score, largest overlap of two boxes of one class, most boxes.
_LEAST_SCORE, _MOST_OVERLAP, _MOST_BOXES = 0.25, 0.7, 300


def boxes_of_yolo(found: Tensor, head: Any, n_classes: int, size: tuple[int, int]) -> Boxes:
    """Read the boxes in the output of a model of ultralytics as its `predict` does.

    Args:
        found: `(N, 4 + classes + others, places)`, centre, width and height in pixels and one score per class. Of
            detectors without suppression, `(N, boxes, 6 + others)`, corners, score, label. Of RT-DETR,
            `(N, queries, 6)`, score and label behind a box in shares of the image; before ultralytics 8.4
            `(N, queries, 4 + classes)`. The others are weights of masks or key points, which are not read.
        head: the last layer of the model.
        size: height and width of the image.

    Raises:
        CannotRunError: the boxes are rotated.
    """
    kinds = {kind.__name__ for kind in type(head).__mro__}
    if "OBB" in kinds:
        raise CannotRunError(
            "the model outputs rotated boxes, which are unsupported", "modelscope stats ...   needs no boxes"
        )
    has_queries, is_final = "RTDETRDecoder" in kinds, bool(getattr(head, "end2end", False))
    has_labels = is_final or (has_queries and hasattr(head, "postprocess"))
    images, of_classes = [], []
    for one in found:
        rows = one if has_queries or is_final else one.T
        if has_labels:
            scores, labels = rows[:, 4], rows[:, 5].long()
        else:
            scores, labels = rows[:, 4 : 4 + n_classes].max(1)
            of_classes.append(rows[:, 4 : 4 + n_classes].amax(0))
        kept = scores > _LEAST_SCORE
        corners, scores, labels = rows[kept, :4], scores[kept], labels[kept]
        if not is_final:
            corners = box_convert(corners, "cxcywh", "xyxy")
        if has_queries:
            corners = corners * corners.new_tensor([size[1], size[0], size[1], size[0]])
        boxes = ImageBoxes(corners, scores, labels)
        if not is_final and not has_queries:
            boxes = boxes[batched_nms(corners, scores, labels, _MOST_OVERLAP)[:_MOST_BOXES]]
        limits = corners.new_tensor([*size[::-1], *size[::-1]])
        boxes = replace(boxes, corners=torch.minimum(boxes.corners.clamp_min(0), limits))
        images.append(boxes.sorted())
    return Boxes(tuple(images), tuple(of_classes))


def boxes_of_queries(
    logits: Tensor, centres: Tensor, size: tuple[int, int], *, has_nothing: bool = False
) -> Boxes:
    """Read the output of DETR-like models.

    Args:
        logits: `(N, queries, C)`. centres: `(N, queries, 4)`, centre, width and height as shares of the image.
        size: height and width of the image.
        has_nothing: whether the last class stands for "no object", so that the scores are a softmax; else every
            class is a sigmoid of its own, and the best pairs of query and class are boxes, as many as queries.
    """
    scale = centres.new_tensor([size[1], size[0], size[1], size[0]])
    corners = box_convert(centres.flatten(0, 1), "cxcywh", "xyxy").reshape(centres.shape) * scale
    if has_nothing:
        scores, labels = logits.softmax(2)[..., :-1].max(2)
    else:
        scores, pairs = logits.sigmoid().flatten(1).topk(logits.shape[1])
        labels = pairs % logits.shape[2]
        corners = corners.gather(1, (pairs // logits.shape[2])[..., None].expand(-1, -1, 4))
    return Boxes(tuple(ImageBoxes(*image).sorted() for image in zip(corners, scores, labels, strict=True)))


def _detached(image: ImageBoxes, number: int) -> ImageBoxes | None:
    """Return one box by itself; None if the image has fewer."""
    if number >= len(image.scores):
        return None
    return ImageBoxes(image.corners[number].detach(), image.scores[number].detach(), image.labels[number])


def _likeness(was: ImageBoxes | None, image: ImageBoxes) -> Tensor:
    """Return the highest score times overlap of the boxes with the same label, 0 without one: Petsiuk et al. 2021,
    "Black-box Explanation of Object Detectors via Saliency Maps", equation 4."""
    if was is None:
        return image.scores.new_zeros(())
    overlap = box_iou(was.corners[None].to(image.corners), image.corners.detach())[0]
    return _best((image.scores * overlap)[image.labels == was.labels])


def _best(scores: Tensor) -> Tensor:
    """Return the largest, or 0 where there is none."""
    return scores.max() if len(scores) else scores.new_zeros(())


def _no_box(which: str, *, is_any_known: bool) -> CannotRunError:
    """Return the error for images without boxes, or those of a class; are the scores of other places known?"""
    hint = "--target 0   takes the best place of class 0, detected or not"
    return CannotRunError(
        f"the model detects no box{which} in the image, so there is none to explain",
        hint if is_any_known else "modelscope predict ...   shows the boxes that it detects",
    )
