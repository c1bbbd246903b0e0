"""Sums of predictions against the truth, sized by the number of classes and not of images."""

import heapq
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modelscope_cli.errors import CannotRunError, nearest
from modelscope_cli.inputs.batch import Batch, Inputs
from modelscope_cli.inputs.truth import Word
from modelscope_cli.records.naming import some
from modelscope_cli.records.predict import BINS, ClassQuality, ConfidenceBin, Confusion, Mistake


@dataclass(frozen=True, slots=True)
class EvaluatedImage:
    """One image with its true and predicted classes."""

    number: int  # in the list of images
    image: str
    truth: tuple[int, ...]  # its true classes
    # For one class the five likeliest, the best first; for labels those that are on
    predicted: tuple[int, ...]
    wrong: int | None  # the class with the highest score that is predicted and not true, or None
    # Its score, if nothing is wrong that of the best class; of a label that is missing 1 - its score
    confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class EvaluatedBatch:
    """The evaluation of a batch."""

    n_classes: int
    n_images: int  # those that could be judged
    images: tuple[EvaluatedImage, ...] = ()
    not_numbers: tuple[str, ...] = ()  # the images whose scores are NaN, and so neither right nor wrong


class ClassNames:
    def __init__(self, labels: Sequence[str] | None, n_classes: int) -> None:
        self.labels = tuple(labels or ())
        self.n_classes = n_classes
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._folded: dict[str, list[int]] = defaultdict(list)
        for index, label in enumerate(self.labels[:n_classes]):
            self._exact[label].append(index)
            self._folded[label.casefold()].append(index)

    def label(self, index: int) -> str | None:
        """Return the name of a class; None if unknown."""
        return self.labels[index] if index < len(self.labels) else None

    def labelled(self, word: str) -> list[int]:
        """Return the classes with this label; ignore case if none matches exactly."""
        return self._exact.get(word) or self._folded.get(word.casefold()) or []

    def find(self, words: Iterable[Word], source: str) -> dict[Word, int]:
        """Return the index of every named class. `source`: of the names, for a message."""
        index_of: dict[Word, int] = {}
        unknown: list[Word] = []
        for word in dict.fromkeys(words):
            indices = self.labelled(word) if isinstance(word, str) else [word]
            if not indices and re.fullmatch(r"\d+(\.0+)?", str(word)):  # pandas writes 3.0
                indices = [int(float(word))]
            if len(indices) > 1:
                message = f"{source}: '{word}' is the label of the classes {', '.join(map(str, indices))}"
                raise CannotRunError(message, f"give the index instead: {indices[0]}")
            if indices and 0 <= indices[0] < self.n_classes:
                index_of[word] = indices[0]
            else:
                unknown.append(word)
        if unknown:
            raise self._unknown(unknown, source)
        return index_of

    def _unknown(self, words: Sequence[Word], source: str) -> CannotRunError:
        named = some([f"'{word}'" for word in words])
        near = nearest(str(words[0]), self.labels)
        verb = "is" if len(words) == 1 else "are"
        message = f"{source}: {named} {verb} not among the {self.n_classes} classes of the model"
        message += "" if self.labels else ", which have no labels"
        hint = "leave out --truth   --labels FILE names the classes, one per line, as the truth does"
        parts = {part for word in words for part in re.split("[|;,]", str(word))}
        if self.labels:
            hint = f"leave out --truth   or give lines such as IMAGE,{'|'.join(self.labels[:2])}"
        elif len(parts) == self.n_classes:
            names = shlex.quote(",".join(map(str, words) if len(words) == len(parts) else sorted(parts)))
            hint = f"--labels {names}   if this is the order of the classes"
        return CannotRunError(message + (f": {near}" if near else ""), hint)


MOST_PAIRS, MOST_WORST = 100, 24
_THUMBNAIL = 224  # pixels, about


class ClassCounts:
    """Counts of each class as true, predicted, and both; and of confused pairs."""

    def __init__(self, n_classes: int) -> None:
        self.n, self.predicted, self.correct = (torch.zeros(n_classes, dtype=torch.int64) for _ in range(3))
        self.pairs: Counter[tuple[int, int]] = Counter()

    def add(self, truth: Tensor, predicted: Tensor) -> None:
        """Add decisions for one class, `(N,)` int64 each."""
        n_classes = len(self.n)
        self.n += truth.bincount(minlength=n_classes)
        self.predicted += predicted.bincount(minlength=n_classes)
        self.correct += truth[truth == predicted].bincount(minlength=n_classes)
        pairs, times = (truth * n_classes + predicted).unique(return_counts=True)
        for pair, count in zip(pairs.tolist(), times.tolist(), strict=True):
            self.pairs[divmod(pair, n_classes)] += count

    def add_labels(self, truth: Tensor, predicted: Tensor) -> None:
        """Add decisions for each class, `(N, classes)` bool each."""
        self.n += truth.sum(0)
        self.predicted += predicted.sum(0)
        self.correct += (truth & predicted).sum(0)

    def means(self, counted: Tensor) -> tuple[float | None, ...]:
        """Return mean precision, recall and F1 of the flagged classes, `(classes,)` bool; None of none.

        As in scikit-learn, the precision of a class that is never predicted is 0, and the recall of one never true.
        """
        n, told, right = (one[counted].double() for one in (self.n, self.predicted, self.correct))
        shares = (right / told.clamp_min(1), right / n.clamp_min(1), 2 * right / (told + n).clamp_min(1))
        return tuple(float(share.mean()) if len(share) else None for share in shares)

    def classes(self, names: ClassNames) -> tuple[ClassQuality, ...]:
        """Return one row per class, in their order."""
        counts = zip(self.n.tolist(), self.predicted.tolist(), self.correct.tolist(), strict=True)
        rows = (
            (n, told, right, ((right, told), (right, n), (2 * right, told + n))) for n, told, right in counts
        )
        return tuple(
            ClassQuality(index, names.label(index), n, told, right, *(ratio(*pair) for pair in pairs))
            for index, (n, told, right, pairs) in enumerate(rows)
        )

    def confusions(self, names: ClassNames) -> tuple[Confusion, ...]:
        """Return the most frequent pairs, in the order of the classes where they are equally frequent."""
        wrong = (item for item in self.pairs.items() if item[0][0] != item[0][1])
        pairs = heapq.nsmallest(MOST_PAIRS, wrong, key=lambda item: (-item[1], item[0]))
        return tuple(
            Confusion(a, names.label(a), b, names.label(b), count, count / int(self.n[a]))
            for (a, b), count in pairs
        )


def other_order(pairs: Mapping[tuple[int, int], int], labels: Sequence[str]) -> str | None:
    """Return the order of the labels if most images of each class are predicted as one class, of no two classes the
    same, and not all are right; `pairs`: images by true class and prediction."""
    images, most = Counter[int](), dict[int, tuple[int, int]]()
    for (truth, predicted), n in pairs.items():
        images[truth] += n
        most[truth] = max(most.get(truth, (0, 0)), (n, predicted))
    true_of = {predicted: truth for truth, (_, predicted) in most.items()}
    order = [true_of.get(index, -1) for index in range(len(labels))]
    is_clear = all(2 * n > images[truth] for truth, (n, _) in most.items())
    if not is_clear or -1 in order or order == sorted(order):
        return None
    accuracy = 100 * sum(n for n, _ in most.values()) / images.total()
    option = shlex.quote(",".join(labels[index] or str(index) for index in order))
    return f"accuracy {accuracy:.1f} % with the labels in this order: --labels {option}"


def ratio(part: float, whole: float) -> float | None:
    """Return a share; None of zero."""
    return part / whole if whole else None


class Calibration:
    """The share of correct images in each bin of confidence."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, BINS, dtype=torch.float64)

    def add(self, confidence: Tensor, is_right: Tensor) -> None:
        """Add the confidence of each image, `(N,)` float64 in 0..1, and whether it is right."""
        # Bin m holds ((m - 1) / BINS, m / BINS], as in Guo et al. 2017, section 2.
        places = (confidence * BINS).ceil().long().sub(1).clamp(0, BINS - 1)
        rows = torch.stack([torch.ones_like(confidence), confidence, is_right.double()])
        self._sums.index_add_(1, places, rows)

    def bins(self) -> tuple[ConfidenceBin, ...]:
        """Return all bins, also those without images."""
        return tuple(
            ConfidenceBin(place / BINS, (place + 1) / BINS, int(n), ratio(confidence, n), ratio(right, n))
            for place, (n, confidence, right) in enumerate(self._sums.T.tolist())
        )

    def error(self) -> float:
        """Return the expected calibration error: `sum(n_b / n * |accuracy_b - confidence_b|)`."""
        n, confidence, right = self._sums
        return float((right - confidence).abs().sum() / n.sum())


class WorstImages:
    """The images with the highest scores of a wrong class, in a bounded heap."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, int, Mistake]] = []
        self._n = 0

    def offer(self, one: EvaluatedImage, names: ClassNames) -> None:
        """Add an image if it is wrong and one of the worst so far; of equal ones the first."""
        if one.wrong is None:
            return
        label = names.label(one.wrong)
        self._n -= 1
        if len(self._heap) == MOST_WORST and one.confidence <= self._heap[0][0]:
            return
        mistake = Mistake(
            image=one.image,
            truth=one.truth,
            truth_labels=tuple(names.label(index) for index in one.truth),
            predicted=one.wrong,
            predicted_label=f"not {label or one.wrong}" if one.wrong in one.truth else label,
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
    """Return thumbnails of preprocessed images by their numbers, `(3, H, W)` uint8; they are decoded again.

    Inputs that are not images are left out.
    """
    thumbnails: dict[int, Tensor] = {}
    batches: Iterable[Batch] = inputs
    if inputs.make_blocks is not None:
        batches = inputs.make_blocks(sorted({number // inputs.block_size for number in numbers}))
    n_before = 0
    for batch in batches:
        here = batch.numbers or range(n_before, n_before + batch.n_images)
        n_before += batch.n_images
        if not set(here).isdisjoint(numbers):
            thumbnails.update(zip(here, map(_small, batch.pictures), strict=False))
    return {number: thumbnails[number] for number in numbers if number in thumbnails}


def _small(picture: Tensor) -> Tensor:
    step = max(max(picture.shape[1:]) // _THUMBNAIL, 1)
    return picture[:, ::step, ::step].clone()
