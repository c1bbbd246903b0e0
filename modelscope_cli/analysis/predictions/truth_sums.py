"""Sums of predictions against the truth: their size depends on the number of classes and not on that of images."""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from modelscope_cli.analysis.predictions.class_names import ClassNames
from modelscope_cli.analysis.predictions.judged import JudgedImage
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.records.predict import BINS, ClassQuality, ConfidenceBin, Confusion, Mistake

MOST_PAIRS, MOST_WORST = 100, 24
_THUMBNAIL = 224  # pixels, about


class ClassCounts:
    """How often each class is true, predicted, and both; and which are taken for which."""

    def __init__(self, n_classes: int) -> None:
        self.n, self.predicted, self.correct = (torch.zeros(n_classes, dtype=torch.int64) for _ in range(3))
        self.pairs: Counter[tuple[int, int]] = Counter()

    def add(self, truth: Tensor, predicted: Tensor) -> None:
        """Take decisions for one class, `(N,)` int64 each."""
        n_classes = len(self.n)
        self.n += truth.bincount(minlength=n_classes)
        self.predicted += predicted.bincount(minlength=n_classes)
        self.correct += truth[truth == predicted].bincount(minlength=n_classes)
        pairs, times = (truth * n_classes + predicted)[truth != predicted].unique(return_counts=True)
        for pair, count in zip(pairs.tolist(), times.tolist(), strict=True):
            self.pairs[divmod(pair, n_classes)] += count

    def add_counted(self, truth: int, predicted: int, count: int) -> None:
        """Take `count` decisions of one kind."""
        self.n[truth] += count
        self.predicted[predicted] += count
        if truth == predicted:
            self.correct[truth] += count
        else:
            self.pairs[truth, predicted] += count

    def add_labels(self, truth: Tensor, predicted: Tensor) -> None:
        """Take decisions for each class, `(N, classes)` bool each."""
        self.n += truth.sum(0)
        self.predicted += predicted.sum(0)
        self.correct += (truth & predicted).sum(0)

    # All three means are over the classes that occur in the truth or in a prediction, as scikit-learn's are.
    def precision(self) -> float:
        """Return the mean over the classes; of one that is never predicted it counts as 0."""
        return float((self.correct / self.predicted.clamp_min(1).double())[self.occurs].mean())

    def recall(self) -> float:
        """Return the mean over the classes; of one that is never true it counts as 0."""
        return float((self.correct / self.n.clamp_min(1).double())[self.occurs].mean())

    def iou(self) -> float:
        """Return the mean of intersection over union."""
        union = self.n + self.predicted - self.correct
        return float((self.correct.double() / union)[self.occurs].mean())

    @property
    def occurs(self) -> Tensor:
        """Which classes are true or predicted at least once, `(classes,)` bool."""
        return (self.n + self.predicted) > 0

    def classes(self, names: ClassNames, *, has_iou: bool = False) -> tuple[ClassQuality, ...]:
        """Return a row a class, in their order."""
        counts = zip(self.n.tolist(), self.predicted.tolist(), self.correct.tolist(), strict=True)
        return tuple(
            ClassQuality(
                index=index,
                label=names.label(index),
                n=n,
                predicted=predicted,
                correct=correct,
                precision=ratio(correct, predicted),
                recall=ratio(correct, n),
                iou=ratio(correct, n + predicted - correct) if has_iou else None,
            )
            for index, (n, predicted, correct) in enumerate(counts)
        )

    def confusions(self, names: ClassNames) -> tuple[Confusion, ...]:
        """Return the most frequent pairs, in the order of the classes where they are equally frequent."""
        pairs = heapq.nsmallest(MOST_PAIRS, self.pairs.items(), key=lambda item: (-item[1], item[0]))
        return tuple(
            Confusion(
                truth,
                names.label(truth),
                predicted,
                names.label(predicted),
                count,
                count / int(self.n[truth]),
            )
            for (truth, predicted), count in pairs
        )


def ratio(part: int, whole: int) -> float | None:
    """Return a share; None of nothing."""
    return part / whole if whole else None


class Calibration:
    """How many of the images of each confidence are right."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, BINS, dtype=torch.float64)

    def add(self, confidence: Tensor, is_right: Tensor) -> None:
        """Take the confidence of each image, `(N,)` float64 in 0..1, and whether it is right."""
        # Bin m holds ((m - 1) / BINS, m / BINS], as in Guo et al. 2017, section 2.
        places = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        rows = torch.stack([torch.ones_like(confidence), confidence, is_right.double()])
        self._sums.index_add_(1, places, rows)

    def bins(self) -> tuple[ConfidenceBin, ...]:
        """Return all bins, also those without images."""
        return tuple(
            ConfidenceBin(
                place / BINS,
                (place + 1) / BINS,
                int(n),
                confidence / n if n else None,
                right / n if n else None,
            )
            for place, (n, confidence, right) in enumerate(self._sums.T.tolist())
        )

    def error(self) -> float:
        """Return the expected calibration error: `sum(n_b / n * |accuracy_b - confidence_b|)`."""
        n, confidence, right = self._sums
        return float((right - confidence).abs().sum() / n.sum())


class Worst:
    """The images with the highest scores of a wrong class; a heap of so many, and of nothing else."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Mistake]] = []
        self._n = 0

    def offer(self, one: JudgedImage, names: ClassNames) -> None:
        """Take an image, if something is wrong with it, and it is one of the worst until now; of equal ones the
        first."""
        if one.wrong is None or one.confidence is None:
            return
        self._n -= 1
        if len(self._heap) == MOST_WORST and one.confidence <= self._heap[0][0]:
            return
        mistake = Mistake(
            image=one.image,
            truth=one.truth,
            truth_labels=tuple(names.label(index) for index in one.truth),
            predicted=one.wrong,
            predicted_label=names.label(one.wrong),
            confidence=one.confidence,
        )
        heapq.heappush(self._heap, (one.confidence, self._n, one.number, mistake))
        if len(self._heap) > MOST_WORST:
            heapq.heappop(self._heap)

    def ranked(self) -> tuple[tuple[Mistake, ...], list[int]]:
        """Return the mistakes, the worst first, and the numbers of their images."""
        ranked = sorted(self._heap, key=lambda entry: entry[:2], reverse=True)
        return tuple(entry[3] for entry in ranked), [entry[2] for entry in ranked]


def pictures_of(inputs: Inputs, numbers: Sequence[int]) -> dict[int, Tensor]:
    """Return what the model sees of some images by their numbers, small, `(3, H, W)` uint8; they are decoded again.

    Of what is not an image nothing.
    """
    found: dict[int, Tensor] = {}
    batches: Iterable[Batch] = inputs
    if inputs.make_blocks is not None:
        batches = inputs.make_blocks(sorted({number // inputs.block_size for number in numbers}))
    n_before = 0
    for batch in batches:
        here = batch.numbers or range(n_before, n_before + batch.n_images)
        n_before += batch.n_images
        if not set(here).isdisjoint(numbers):
            found.update(zip(here, map(_small, batch.pictures), strict=False))
    return {number: found[number] for number in numbers if number in found}


def _small(picture: Tensor) -> Tensor:
    step = max(max(picture.shape[1:]) // _THUMBNAIL, 1)
    return picture[:, ::step, ::step].clone()
