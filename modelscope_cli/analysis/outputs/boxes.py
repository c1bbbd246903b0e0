"""Boxes around objects, as detection models return them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

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
    """The boxes of one image, best first."""

    corners: Tensor  # `(K, 4)`, x0, y0, x1, y1 in pixels of the input image
    scores: Tensor  # `(K,)`, 0..1
    labels: Tensor  # `(K,)`, integers
    # What else belongs to the boxes: `masks`, `(K, H, W)` uint8, `points`, `(K, P, 2 or 3)`, x, y and
    # confidence of key points, and `turned`, `(K, 4, 2)`, of rotated boxes, whose `corners` are around them
    more: Mapping[str, Tensor] = field(default_factory=dict)

    def __getitem__(self, which: Tensor) -> "ImageBoxes":
        more = {name: tensor[which] for name, tensor in self.more.items()}
        return ImageBoxes(self.corners[which], self.scores[which], self.labels[which], more)

    def sorted(self) -> "ImageBoxes":
        """Return the same, best first."""
        return self[self.scores.detach().argsort(descending=True, stable=True)]

    def guess(self, number: int, categories: Sequence[str] | None) -> Guess:
        """Return one box as a guess, which has a score and no logit."""
        label, more = int(self.labels[number]), {name: one[number] for name, one in self.more.items()}
        mask, points, turned = (more.get(name) for name in ("masks", "points", "turned"))
        return Guess(
            label,
            label_of_class(label, categories),
            float(self.scores[number]),
            None,
            share=None if mask is None else float(mask.float().mean()),
            box=tuple(self.corners[number].tolist()),
            corners=None if turned is None else tuple(map(tuple, turned.tolist())),
            points=None if points is None else tuple(map(tuple, points.tolist())),
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
        return "no box" if n_boxes == 0 else f"{n_boxes} box" + ("es" if n_boxes > 1 else "")

    def __len__(self) -> int:
        return len(self.images)

    def settled(self) -> Self:
        return type(self)(
            tuple(
                ImageBoxes(
                    settle(one.corners),
                    settle(one.scores),
                    one.labels.cpu(),
                    {name: tensor.detach().cpu() for name, tensor in one.more.items()},
                )
                for one in self.images
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

            def best(answer: OutputPart) -> Tensor:
                assert isinstance(answer, Boxes)
                if answer.of_classes:
                    return torch.stack([scores[index] for scores in answer.of_classes])
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
        return tuple(
            tuple(one.guess(number, categories) for number in range(len(one.scores))[:n])
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


# As ultralytics predicts: least score, largest overlap of two boxes of one class, most boxes; and how far the boxes
# of different classes are moved apart to be suppressed at once.
_LEAST_SCORE, _MOST_OVERLAP, _MOST_BOXES, _APART = 0.25, 0.7, 300, 7680


def boxes_of_yolo(
    found: Tensor, head: Any, n_classes: int, size: tuple[int, int], protos: Tensor | None = None
) -> Boxes:
    """Read the output of a detector of ultralytics as its `predict` does.

    Args:
        found: `(N, 4 + classes + others, places)`, centre, width and height in pixels and one score per class. Of
            detectors without suppression, `(N, boxes, 6 + others)`, corners, score, label. Of RT-DETR,
            `(N, queries, 6)`, score and label behind a box in shares of the image; before ultralytics 8.4
            `(N, queries, 4 + classes)`. The others are weights of masks, key points or an angle.
        head: the last layer of the model.
        size: height and width of the image.
        protos: `(N, weights, h, w)`, whose weighted sums are the masks.
    """
    kinds = {kind.__name__ for kind in type(head).__mro__}
    has_queries, is_final = "RTDETRDecoder" in kinds, bool(getattr(head, "end2end", False))
    has_labels = is_final or (has_queries and hasattr(head, "postprocess"))
    images, of_classes = [], []
    for number, one in enumerate(found):
        rows = one if has_queries or is_final else one.T
        if has_labels:
            scores, labels, others = rows[:, 4], rows[:, 5].long(), rows[:, 6:]
        else:
            (scores, labels), others = rows[:, 4 : 4 + n_classes].max(1), rows[:, 4 + n_classes :]
            of_classes.append(rows[:, 4 : 4 + n_classes].amax(0))
        kept = scores > _LEAST_SCORE
        places, scores, labels, others = rows[kept, :4], scores[kept], labels[kept], others[kept]
        more: dict[str, Tensor] = {}
        if "OBB" in kinds:
            turned = torch.cat([places, others[:, -1:]], 1)
            more["turned"] = _corners_of(turned)
            corners = torch.cat([more["turned"].amin(1), more["turned"].amax(1)], 1)
            chosen = None if is_final else _suppressed_turned(turned, scores, labels)
        else:
            corners = places if is_final else box_convert(places, "cxcywh", "xyxy")
            if has_queries:
                corners = corners * corners.new_tensor([size[1], size[0], size[1], size[0]])
            is_sure = is_final or has_queries
            chosen = None if is_sure else batched_nms(corners, scores, labels, _MOST_OVERLAP)
        if "Pose" in kinds:
            more["points"] = others.reshape(len(others), *head.kpt_shape)
        boxes = ImageBoxes(corners, scores, labels, more | {"others": others})
        boxes = boxes if chosen is None else boxes[chosen[:_MOST_BOXES]]
        more = {name: tensor for name, tensor in boxes.more.items() if name != "others"}
        if protos is not None and len(boxes.scores):
            masks = _masks(protos[number], boxes.more["others"], boxes.corners, size)
            boxes, more = boxes[masks.amax((1, 2)) > 0], {"masks": masks[masks.amax((1, 2)) > 0]}
        corners = boxes.corners
        if "OBB" not in kinds:
            corners = torch.minimum(corners.clamp_min(0), corners.new_tensor([*size[::-1], *size[::-1]]))
        if (points := more.get("points")) is not None:
            limits = points.new_tensor([*size[::-1], float("inf")][: points.shape[2]])
            more["points"] = torch.minimum(points.clamp_min(0), limits)
        images.append(ImageBoxes(corners, boxes.scores, boxes.labels, more).sorted())
    return Boxes(tuple(images), tuple(of_classes))


def _masks(protos: Tensor, weights: Tensor, corners: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the mask inside each box, `(K, H, W)` uint8."""
    masks = torch.einsum("kc,chw->khw", weights, protos)
    large = torch.nn.functional.interpolate(masks[None], size, mode="bilinear")[0]
    x, y = (torch.arange(side, device=masks.device) for side in (size[1], size[0]))
    left, top, right, bottom = corners.T[:, :, None, None]
    is_inside = (x >= left) & (x < right) & (y[:, None] >= top) & (y[:, None] < bottom)
    return ((large > 0) & is_inside).byte().detach()


def _corners_of(turned: Tensor) -> Tensor:
    """Return the corners, `(K, 4, 2)`, of boxes of centre, width, height and angle, `(K, 5)`."""
    centre, (width, height), angle = turned[:, :2], turned[:, 2:4].T, turned[:, 4]
    along = torch.stack([angle.cos(), angle.sin()], 1) * width[:, None] / 2
    across = torch.stack([-angle.sin(), angle.cos()], 1) * height[:, None] / 2
    signs = ((1, 1), (1, -1), (-1, -1), (-1, 1))
    return torch.stack([centre + a * along + b * across for a, b in signs], 1)


def _suppressed_turned(turned: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
    """Return the numbers of the rotated boxes that are left, as ultralytics suppresses them."""
    from ultralytics.utils.metrics import batch_probiou
    from ultralytics.utils.nms import TorchNMS

    apart = turned.detach().clone()
    apart[:, :2] += _APART * labels[:, None]
    if not len(apart):
        return labels
    return TorchNMS.fast_nms(apart, scores.detach(), _MOST_OVERLAP, iou_func=batch_probiou)


def boxes_of_queries(
    logits: Tensor,
    centres: Tensor,
    size: tuple[int, int],
    *,
    has_nothing: bool = False,
    labels: Tensor | None = None,
) -> Boxes:
    """Read the output of DETR-like models.

    Args:
        logits: `(N, queries, C)`. centres: `(N, queries, 4)`, centre, width and height as shares of the image.
        size: height and width of the image.
        has_nothing: whether the last class stands for "no object", so that the scores are a softmax; else every
            class is a sigmoid of its own, and the best pairs of query and class are boxes, as many as queries.
        labels: of the queries, `(N, queries)`, for one logit each.
    """
    scale = centres.new_tensor([size[1], size[0], size[1], size[0]])
    corners = box_convert(centres.flatten(0, 1), "cxcywh", "xyxy").reshape(centres.shape) * scale
    if has_nothing:
        scores, labels = logits.softmax(2)[..., :-1].max(2)
    elif labels is not None:
        scores = logits[..., 0].sigmoid()
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
    return image[image.scores >= _FOUND]


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
