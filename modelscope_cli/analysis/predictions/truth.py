"""`predict --truth`: predictions held against what is true, batch by batch."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.answer import Answer
from modelscope_cli.analysis.outputs.classes import PixelScores
from modelscope_cli.analysis.outputs.said import Scoring
from modelscope_cli.analysis.predictions.class_names import ClassNames
from modelscope_cli.analysis.predictions.scores import probabilities
from modelscope_cli.analysis.predictions.truth_masks import Masks
from modelscope_cli.analysis.predictions.truth_sums import Calibration, ClassCounts, Worst, ratio
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.truth import GivenTruth, Words
from modelscope_cli.records.naming import some
from modelscope_cli.records.truth import Mistake, Share, TruthReport

Pictures = Callable[[], Sequence[Tensor]]
Worsts = tuple[tuple[Mistake, Tensor | None], ...]


class Judge:
    """Holds the predictions for images against what is true of these."""

    def __init__(
        self,
        truth: GivenTruth,
        subject: Subject,
        categories: Sequence[str] | None,
        scoring: Scoring,
        threshold: float,
        *,
        has_pictures: bool,
    ) -> None:
        """Find the truth of every image before the model runs.

        Args:
            has_pictures: whether the worst images are kept as the model saw them.

        Raises:
            UsageError: noise, or images that lie in no folder (exit 2).
            CannotRunError: an image whose truth nobody gave (exit 4).
        """
        given, inputs = subject.given, subject.inputs
        if given.is_noise:
            raise UsageError("nothing is true of noise", "give images")
        files = (
            inputs.files if inputs.n_listed == len(inputs.files) else inputs.files[:1]
        )  # of a clip the first
        if truth.is_folders and (not files or inputs.files.has_given):
            raise UsageError(f"{given.name} lies in no folder that could be its class", "give image files")
        names = [file.name for file in files] or [str(number) for number in range(inputs.n_listed)]
        self._truth, self._words = truth, truth.of_images(names)
        self._names = names
        self._plan = inputs.preprocessing
        self._categories, self._scoring, self._threshold = categories, scoring, threshold
        self._has_pictures = has_pictures
        self._sums: Sums | None = None
        self._n_images = 0

    def add(self, answer: Answer, batch: Batch, first: int) -> None:
        """Take the predictions for a batch. `first`: number of its first image.

        Raises:
            CannotRunError: they cannot be held against this truth, or are NaN (exit 4).
        """
        if self._sums is None:
            self._sums = self._begin(answer)
        here = batch.numbers or range(first, first + len(answer))
        words, names = [self._words[n] for n in here], [self._names[n] for n in here]
        pictures = cache(lambda: batch.pictures if self._has_pictures else ())
        self._sums.add(answer.main.tensor(), words, names, pictures)
        self._n_images += len(answer)

    def report(self) -> tuple[TruthReport, Worsts]:
        """Return what was found, and the worst images with their pictures."""
        assert self._sums is not None  # there is always one batch
        return self._sums.report(self._n_images)

    def _begin(self, answer: Answer) -> "Sums":
        main = answer.main
        n_classes = main.n_classes or 0
        if answer.kind not in ("classes", "pixels"):
            raise CannotRunError(
                f"the model gives {answer.words}, and '--truth' is for one row of scores an image, or a pixel",
                "leave out --truth",
            )
        if n_classes < 2:
            message = "the model gives one value an image, and '--truth' is for two classes or more"
            raise CannotRunError(message, "leave out --truth")
        names = ClassNames(self._categories, n_classes)
        if isinstance(main, PixelScores):
            if self._scoring.activation == "sigmoid":
                message = "'--truth' is for one class a pixel, and sigmoid gives several or none"
                raise CannotRunError(message, "--scores softmax")
            return OfPixels(names, Masks(self._truth, self._plan, n_classes))
        indices = names.find((word for words in self._words for word in words), self._truth.name)
        if self._scoring.activation == "sigmoid":
            return OfLabels(names, indices, self._scoring, self._threshold)
        strange = [
            name
            for name, words in zip(self._names, self._words, strict=True)
            if len({indices[word] for word in words}) != 1
        ]
        if strange:
            images = some(map(repr, strange))
            message = f"{self._truth.name} does not say one class of {images}, and softmax predicts one"
            raise CannotRunError(message, "--scores sigmoid   is for several classes or none")
        return OfClasses(names, indices, self._scoring)


class Sums(ABC):
    """Sums over the images of one kind of truth."""

    @abstractmethod
    def add(self, logits: Tensor, words: Sequence[Words], images: Sequence[str], pictures: Pictures) -> None:
        """Take a batch: its logits, what is true of its images, and what these are called."""

    @abstractmethod
    def report(self, n_images: int) -> tuple[TruthReport, Worsts]:
        """Return the figures."""


class OfClasses(Sums):
    """One class is true of every image."""

    def __init__(self, names: ClassNames, indices: dict[Any, int], scoring: Scoring) -> None:
        self._names, self._indices, self._scoring = names, indices, scoring
        self._counts, self._calibration, self._worst = ClassCounts(names.n_classes), Calibration(), Worst()
        self._n_in_top5 = 0

    def add(self, logits: Tensor, words: Sequence[Words], images: Sequence[str], pictures: Pictures) -> None:
        truth = torch.tensor([self._indices[own[0]] for own in words])
        scores = _scores(logits, self._scoring, images)
        # As the guesses are ordered: of equal logits the first.
        best = logits.sort(dim=1, descending=True, stable=True).indices[:, :5]
        predicted = best[:, 0]
        confidence, is_right = scores.gather(1, best[:, :1])[:, 0], predicted == truth
        self._counts.add(truth, predicted)
        self._n_in_top5 += int((best == truth[:, None]).any(1).sum())
        self._calibration.add(confidence, is_right)
        for n in (~is_right).nonzero()[:, 0].tolist():
            self._worst.offer(
                images[n],
                (int(truth[n]),),
                int(predicted[n]),
                float(confidence[n]),
                self._names,
                partial(_nth, pictures, n),
            )

    def report(self, n_images: int) -> tuple[TruthReport, Worsts]:
        worst = self._worst.ranked()
        has_top5 = self._names.n_classes > 5
        return TruthReport(
            kind="classes",
            images=n_images,
            accuracy=Share.of(int(self._counts.correct.sum()), n_images),
            top5_accuracy=Share.of(self._n_in_top5, n_images) if has_top5 else None,
            macro_precision=self._counts.precision(),
            macro_recall=self._counts.recall(),
            ece=self._calibration.error(),
            bins=self._calibration.bins(),
            classes=self._counts.classes(self._names),
            confusions=self._counts.confusions(self._names),
            worst=tuple(mistake for mistake, _ in worst),
        ), worst


class OfLabels(Sums):
    """Several classes are true of an image, or none; each is on from the threshold."""

    def __init__(
        self, names: ClassNames, indices: dict[Any, int], scoring: Scoring, threshold: float
    ) -> None:
        self._names, self._indices, self._scoring, self._threshold = names, indices, scoring, threshold
        self._counts, self._worst = ClassCounts(names.n_classes), Worst()

    def add(self, logits: Tensor, words: Sequence[Words], images: Sequence[str], pictures: Pictures) -> None:
        scores = _scores(logits, self._scoring, images)
        own = [sorted({self._indices[word] for word in one}) for one in words]
        truth = torch.zeros(logits.shape, dtype=torch.bool)
        for row, classes in zip(truth, own, strict=True):
            row[classes] = True
        is_on = scores >= self._threshold
        self._counts.add_labels(truth, is_on)
        confidence, wrong = scores.where(is_on & ~truth, -1.0).max(1)
        for n in (confidence >= 0).nonzero()[:, 0].tolist():
            self._worst.offer(
                images[n],
                own[n],
                int(wrong[n]),
                float(confidence[n]),
                self._names,
                partial(_nth, pictures, n),
            )

    def report(self, n_images: int) -> tuple[TruthReport, Worsts]:
        worst, counts = self._worst.ranked(), self._counts
        correct = int(counts.correct.sum())
        has_truth = bool(counts.n.any())
        return TruthReport(
            kind="labels",
            images=n_images,
            macro_precision=counts.precision() if has_truth else None,
            macro_recall=counts.recall() if has_truth else None,
            micro_precision=ratio(correct, int(counts.predicted.sum())),
            micro_recall=ratio(correct, int(counts.n.sum())),
            classes=counts.classes(self._names),
            worst=tuple(mistake for mistake, _ in worst),
        ), worst


class OfPixels(Sums):
    """One class is true of every pixel, by a mask."""

    def __init__(self, names: ClassNames, masks: Masks) -> None:
        self._names, self._masks, self._counts = names, masks, ClassCounts(names.n_classes)

    def add(self, logits: Tensor, words: Sequence[Words], images: Sequence[str], pictures: Pictures) -> None:
        for image, own, name in zip(logits, words, images, strict=True):
            if image.isnan().any():
                raise _not_a_number(name)
            self._counts.add(*self._masks.pixels(image, own, name))

    def report(self, n_images: int) -> tuple[TruthReport, Worsts]:
        counts = self._counts
        if not counts.n.any():
            message = "no pixel of the masks has a class: all are 255, which means that nobody knows"
            raise CannotRunError(message, "give masks that hold the index of a class")
        return TruthReport(
            kind="pixels",
            images=n_images,
            pixel_accuracy=int(counts.correct.sum()) / int(counts.n.sum()),
            mean_iou=counts.iou(),
            macro_precision=counts.precision(),
            macro_recall=counts.recall(),
            classes=counts.classes(self._names, has_iou=True),
            confusions=counts.confusions(self._names),
        ), ()


def _nth(pictures: Pictures, n: int) -> Tensor | None:
    made = pictures()
    return made[n] if n < len(made) else None


def _scores(logits: Tensor, scoring: Scoring, images: Sequence[str]) -> Tensor:
    """Return the scores of all classes, `(N, classes)` float64.

    Raises:
        CannotRunError: one is NaN, and says nothing (exit 4).
    """
    scores = probabilities(logits.double(), scoring.activation, scoring.temperature)
    strange = scores.isnan().any(1).nonzero()[:, 0].tolist()
    if strange:
        raise _not_a_number(images[strange[0]])
    return scores


def _not_a_number(image: str) -> CannotRunError:
    message = f"the model's scores of '{image}' are NaN, so they are neither right nor wrong"
    return CannotRunError(message, "modelscope stats   shows where they begin")
