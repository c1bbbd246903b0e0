"""What `predict --truth` finds: how often a model is right, where it is not, and how far its confidence holds."""

from dataclasses import dataclass
from typing import NamedTuple

from modelscope_cli.records.run import BrokenKind

BINS = 15  # Guo et al. 2017, as most papers since


class Measure(NamedTuple):
    """One figure: `key` for machines, `name` for people; `low` and `high` where it has an interval."""

    key: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the images, with the interval that holds the true share in 95 of 100 such samples.

    It is Wilson's (1927, "Probable inference, the law of succession, and statistical inference"), which stays
    within 0..1 and means something for few images and for shares of 0 and 1, too.
    """

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, count: int, n: int, z: float = 1.959963984540054) -> "Share":
        """Return `count / n`. `z`: quantile of the normal distribution, of 97.5 %."""
        share = count / n
        middle, spread = share + z * z / (2 * n), z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
        scale = 1 + z * z / n
        # At 0 and n the two terms are equal, and the rounding of a root would decide.
        low, high = (middle - spread) / scale, (middle + spread) / scale
        return cls(share, low if count else 0.0, high if count < n else 1.0)


@dataclass(frozen=True, slots=True)
class ClassQuality:
    """One class.

    Attributes:
        n: images of it; of pixels, pixels. `predicted`: how many were taken for it.
        correct: how many of these are.
        precision: correct / predicted. `recall`: correct / n. `iou`: correct / (n + predicted - correct), of
            pixels only. None where there is nothing to divide by.
    """

    index: int
    label: str | None
    n: int
    predicted: int
    correct: int
    precision: float | None
    recall: float | None
    iou: float | None = None


@dataclass(frozen=True, slots=True)
class Confusion:
    """Images (or pixels) of the class `truth` taken for `predicted`; `share`: of those of `truth`."""

    truth: int
    truth_label: str | None
    predicted: int
    predicted_label: str | None
    count: int
    share: float


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Images whose confidence lies above `low` and up to `high`: their mean confidence, and how many are right.

    `confidence` and `accuracy` are None without images.
    """

    low: float
    high: float
    n: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True)
class Mistake:
    """An image of the classes `truth` and the score of the class `predicted`, which is none of them."""

    image: str
    truth: tuple[int, ...]
    truth_labels: tuple[str | None, ...]
    predicted: int
    predicted_label: str | None
    confidence: float


@dataclass(frozen=True, slots=True)
class TruthReport:
    """A model's predictions against the truth.

    Attributes:
        kind: `classes`, one of each image; `labels`, several or none of each image; `pixels`.
        images: how many could be judged. `not_judged`: those whose scores are NaN, how many and the first ten.
        accuracy: share of the images whose likeliest class is the true one. `top5_accuracy`: whose true class is
            among the five likeliest, of more than five classes. None of labels and pixels.
        pixel_accuracy: share of the pixels whose class is known.
        mean_iou, macro_precision, macro_recall: means over the classes that are in the truth or in a prediction;
            of one that is never predicted the precision counts as 0, of one that is never true the recall. None
            where there are none.
        micro_precision, micro_recall: of all decisions together, of labels only. None where nothing was
            predicted, or nothing is true.
        ece: expected calibration error, the mean over the images of |accuracy - confidence| of their bin: 15 of
            equal width, without their lower edge and with the upper one (Guo et al. 2017, "On calibration of
            modern neural networks"). `bins`: these; both of classes only.
        classes: all of them, in their order.
        confusions: the most frequent first, up to 100 pairs; none of labels.
        worst: the images with the highest score of a wrong class, up to 24; none of pixels.
    """

    kind: str
    images: int
    accuracy: Share | None = None
    top5_accuracy: Share | None = None
    pixel_accuracy: float | None = None
    mean_iou: float | None = None
    macro_precision: float | None = None
    macro_recall: float | None = None
    micro_precision: float | None = None
    micro_recall: float | None = None
    ece: float | None = None
    bins: tuple[ConfidenceBin, ...] = ()
    classes: tuple[ClassQuality, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    worst: tuple[Mistake, ...] = ()
    not_judged: tuple[BrokenKind, ...] = ()

    def measures(self) -> list[Measure]:
        """Return the figures of all images together, one a row of the table."""
        shares = {"accuracy": "accuracy", "top5_accuracy": "top-5 accuracy"}
        figures = {
            "pixel_accuracy": "pixel accuracy",
            "mean_iou": "mean IoU",
            "macro_precision": "precision, mean over classes",
            "macro_recall": "recall, mean over classes",
            "micro_precision": "precision, all together",
            "micro_recall": "recall, all together",
            "ece": "calibration error",
        }
        found = [
            Measure(key, name, share.value, share.low, share.high)
            for key, name in shares.items()
            if (share := getattr(self, key)) is not None
        ]
        return found + [
            Measure(key, name, value)
            for key, name in figures.items()
            if (value := getattr(self, key)) is not None
        ]
