"""`predict --truth`: compare predictions with the truth, batch by batch."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.analysis.outputs.model_output import ModelOutput
from modelscope_cli.analysis.outputs.vectors import Vectors
from modelscope_cli.analysis.predictions.metrics import (
    Calibration,
    ClassCounts,
    ClassNames,
    EvaluatedBatch,
    EvaluatedImage,
    WorstImages,
    other_order,
    ratio,
)
from modelscope_cli.analysis.predictions.scores import probabilities
from modelscope_cli.analysis.subject import Subject
from modelscope_cli.analysis.supported import check_output
from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.inputs.image import in_words
from modelscope_cli.inputs.truth import NUMBERS_HINT, GivenTruth, Words
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.predict import TruthReport
from modelscope_cli.records.run import BrokenKind, Notice, Share

_MOST_NAMED = 10  # images in the record


class Evaluator:
    """Compares the predictions for images with the truth."""

    def __init__(
        self, truth: GivenTruth, subject: Subject, categories: Sequence[str] | None, threshold: float
    ) -> None:
        """Find the truth of every image before the model runs."""
        requested, inputs = subject.given, subject.inputs
        if requested.is_noise:
            raise UsageError("noise has no true classes", "give images")
        files = inputs.files
        if truth.words is None and (not files or files.has_given):
            raise UsageError(
                f"{requested.name} is not in a folder that is named after a class", "give image files"
            )
        names = [file.name for file in files] or [str(number) for number in range(inputs.n_listed)]
        self.truth, self._names = truth, names
        self._words = truth.of_images(names, files)
        self._categories, self._threshold = categories, threshold
        self._sums: OfClasses | OfLabels | None = None
        self._n_images = self._n_not_numbers = 0
        self._not_numbers: tuple[str, ...] = ()

    def look(self, answer: ModelOutput, batch: Batch, first: int, activation: str) -> EvaluatedBatch | None:
        """Compare the predictions for a batch with the truth. `first`: number of its first image.

        Return None if the output is not scores of classes and the truth was only found in the names of folders.
        """
        if self.truth.is_auto and (answer.main.kind != "classes" or activation != "softmax"):
            return None
        main, here = answer.main, batch.numbers or range(first, first + len(answer))
        hint = NUMBERS_HINT if isinstance(main, Vectors) else "leave out --truth"
        if isinstance(main, Vectors) and main.is_one_value and self._are_flags:
            hint = "--scores sigmoid   if the value is the logit of a class"
        check_output("predict --truth", answer, hint)
        sums = self._sums_of(main.n_classes or 0, activation)
        scores = probabilities(main.tensor().double(), activation)
        is_number = scores.flatten(1).isfinite().all(1)
        kept = [n for n, is_kept in zip(here, is_number.tolist(), strict=True) if is_kept]
        words, names = [self._words[n] for n in kept], [self._names[n] for n in kept]
        judged = sums.look(main.tensor()[is_number], kept, words, names)
        return replace(judged, not_numbers=tuple(self._names[n] for n in here if n not in kept))

    def add(self, judged: EvaluatedBatch, activation: str) -> None:
        sums = self._sums_of(judged.n_classes, activation)
        if judged.n_images:
            sums.add(judged)
        self._n_images += judged.n_images
        self._n_not_numbers += len(judged.not_numbers)
        self._not_numbers = (*self._not_numbers, *judged.not_numbers)[:_MOST_NAMED]

    def report(self) -> tuple[TruthReport | None, list[int]]:
        """Return the metrics, and the numbers of the worst images."""
        if self._sums is None:
            return None, []
        if not self._n_images:
            images = some(map(repr, self._not_numbers))
            message = f"the model's scores are NaN for {images}: nothing can be judged"
            raise CannotRunError(message, "modelscope stats ...   shows where they begin")
        report, numbers = self._sums.report(self._n_images)
        if self._not_numbers:
            report = replace(report, not_judged=self._broken())
        return report, numbers

    def _broken(self) -> tuple[BrokenKind, ...]:
        return (BrokenKind("NaN", self._n_not_numbers, self._not_numbers),)

    def warnings(self) -> tuple[Notice, ...]:
        """Warn of the images whose scores are NaN."""
        n, n_all = self._n_not_numbers, self._n_images + self._n_not_numbers
        of = f"{n:,} of {counted(n_all, 'image')}"
        message = f"{of} not judged because of their scores: {in_words(self._broken())}"
        return (Notice("not-judged", message),) if n else ()

    def words_sha256(self) -> str:
        """Return the hash of the truth of all images, in their order."""
        return hashlib.sha256(json.dumps(self._words).encode()).hexdigest()

    @property
    def _are_flags(self) -> bool:
        return {str(word) for words in self._words for word in words} <= {"0", "1"}

    def _sums_of(self, n_classes: int, activation: str) -> "OfClasses | OfLabels":
        if self._sums is None:
            self._sums = self._begin(n_classes, activation)
        return self._sums

    def _begin(self, n_classes: int, activation: str) -> "OfClasses | OfLabels":
        if n_classes < 2 and not self._are_flags:
            message = "the model outputs one score per image, so '--truth' needs 0 or 1 for each"
            raise CannotRunError(message, "leave out --truth")
        if n_classes < 2:
            self._words = [tuple(0 for word in words if str(word) == "1") for words in self._words]
        names = ClassNames(self._categories, n_classes)
        words = {word for words in self._words for word in words}
        indices = names.find([*self.truth.columns, *sorted(words, key=str)], self.truth.name)
        if activation == "sigmoid":
            return OfLabels(names, indices, activation, self._threshold)
        ambiguous = [
            name
            for name, words in zip(self._names, self._words, strict=True)
            if len({indices[word] for word in words}) != 1
        ]
        if ambiguous:
            images = some(map(repr, ambiguous))
            message = f"{self.truth.name} does not give one class for {images}, but softmax predicts one"
            raise CannotRunError(message, "--scores sigmoid   predicts several classes or none")
        return OfClasses(names, indices, activation)


class _MetricSums:
    """Metrics of one kind of truth, summed over the images."""

    def __init__(self, names: ClassNames, indices: dict[Any, int], activation: str) -> None:
        self._names, self._indices, self._activation = names, indices, activation
        self._counts, self._worst = ClassCounts(names.n_classes), WorstImages()


class OfClasses(_MetricSums):
    """Metrics of images with one true class each."""

    def __init__(self, names: ClassNames, indices: dict[Any, int], activation: str) -> None:
        super().__init__(names, indices, activation)
        self._calibration, self._n_in_top5 = Calibration(), 0

    def look(
        self, logits: Tensor, numbers: Sequence[int], words: Sequence[Words], images: Sequence[str]
    ) -> EvaluatedBatch:
        scores = probabilities(logits.double(), self._activation)
        # As the guesses are ordered: of equal logits the first.
        best = logits.sort(dim=1, descending=True, stable=True).indices[:, :5]
        confidence = scores.gather(1, best[:, :1])[:, 0].tolist()
        truth = [self._indices[own[0]] for own in words]
        found = tuple(
            EvaluatedImage(number, name, (true,), tuple(five), five[0] if five[0] != true else None, score)
            for number, name, true, five, score in zip(
                numbers, images, truth, best.tolist(), confidence, strict=True
            )
        )
        return EvaluatedBatch(logits.shape[1], len(found), found)

    def add(self, judged: EvaluatedBatch) -> None:
        truth = torch.tensor([one.truth[0] for one in judged.images])
        predicted = torch.tensor([one.predicted[0] for one in judged.images])
        confidence = torch.tensor([one.confidence for one in judged.images], dtype=torch.float64)
        self._counts.add(truth, predicted)
        self._n_in_top5 += sum(one.truth[0] in one.predicted for one in judged.images)
        self._calibration.add(confidence, predicted == truth)
        for one in judged.images:
            self._worst.offer(one, self._names)

    def report(self, n_images: int) -> tuple[TruthReport, list[int]]:
        worst, numbers = self._worst.ranked()
        precision, recall, f1 = self._counts.means((self._counts.n + self._counts.predicted) > 0)
        has_top5 = self._names.n_classes > 5
        return TruthReport(
            kind="classes",
            images=n_images,
            accuracy=Share.of(int(self._counts.correct.sum()), n_images),
            top5_accuracy=Share.of(self._n_in_top5, n_images) if has_top5 else None,
            macro_precision=precision,
            macro_recall=recall,
            macro_f1=f1,
            ece=self._calibration.error(),
            bins=self._calibration.bins(),
            classes=self._counts.classes(self._names),
            confusions=self._counts.confusions(self._names),
            worst=worst,
            other_order=other_order(self._counts.pairs, self._names.labels),
        ), numbers


class OfLabels(_MetricSums):
    """Metrics of images with any number of true classes; each is predicted from the threshold on."""

    def __init__(self, names: ClassNames, indices: dict[Any, int], activation: str, threshold: float) -> None:
        super().__init__(names, indices, activation)
        self._threshold, self._n_exact = threshold, 0

    def look(
        self, logits: Tensor, numbers: Sequence[int], words: Sequence[Words], images: Sequence[str]
    ) -> EvaluatedBatch:
        scores = probabilities(logits.double(), self._activation)
        own = [sorted({self._indices[word] for word in one}) for one in words]
        is_on = scores >= self._threshold
        is_wrong = is_on != _flags(own, scores.shape)
        confidence, wrong = scores.where(is_on, 1 - scores).where(is_wrong, -1.0).max(1)
        found = tuple(
            EvaluatedImage(
                numbers[n],
                images[n],
                tuple(own[n]),
                tuple(is_on[n].nonzero()[:, 0].tolist()),
                int(wrong[n]) if confidence[n] >= 0 else None,
                float(confidence[n]),
            )
            for n in range(len(images))
        )
        return EvaluatedBatch(logits.shape[1], len(found), found)

    def add(self, judged: EvaluatedBatch) -> None:
        self._n_exact += sum(one.truth == one.predicted for one in judged.images)
        shape = torch.Size((len(judged.images), judged.n_classes))
        truth = _flags([one.truth for one in judged.images], shape)
        self._counts.add_labels(truth, _flags([one.predicted for one in judged.images], shape))
        for one in judged.images:
            self._worst.offer(one, self._names)

    def report(self, n_images: int) -> tuple[TruthReport, list[int]]:
        (worst, numbers), counts = self._worst.ranked(), self._counts
        correct, n_true, n_told = (int(one.sum()) for one in (counts.correct, counts.n, counts.predicted))
        precision, recall, f1 = counts.means(counts.n > 0)
        return TruthReport(
            kind="labels",
            images=n_images,
            exact_match=Share.of(self._n_exact, n_images),
            macro_precision=precision,
            macro_recall=recall,
            macro_f1=f1,
            micro_precision=ratio(correct, n_told),
            micro_recall=ratio(correct, n_true),
            micro_f1=ratio(2 * correct, n_told + n_true),
            classes=counts.classes(self._names),
            worst=worst,
        ), numbers


def _flags(classes: Sequence[Sequence[int]], shape: torch.Size) -> Tensor:
    """Return flags of the classes of each image, `(N, classes)` bool."""
    flags = torch.zeros(shape, dtype=torch.bool)
    for row, meant in zip(flags, classes, strict=True):
        row[list(meant)] = True
    return flags
