"""What `predict` returns; other commands share its predictions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

from modelscope_cli.records.display import Row, column, count, figure, hidden, share, words
from modelscope_cli.records.run import BrokenKind, HookReport, Record, Share

BINS = 15  # Guo et al. 2017, as most papers since


class Measure(NamedTuple):
    """One figure: `key` for machines, `name` for people; `low` and `high` where it has an interval."""

    key: str
    name: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ClassQuality:
    """One class.

    Attributes:
        n: number of its images. `predicted`: number of predictions of the class.
        correct: number of right ones among them.
        precision: correct / predicted. `recall`: correct / n. None where there is nothing to divide by.
        f1: 2 correct / (predicted + n), None where both are 0.
    """

    index: Annotated[int, column(rank=3)]
    label: str | None
    n: Annotated[int, count(rank=0)]
    predicted: Annotated[int, count(rank=2)]
    correct: Annotated[int, count(rank=0)]
    precision: Annotated[float | None, share(rank=0)]
    recall: Annotated[float | None, share(rank=0)]
    f1: Annotated[float | None, share(rank=0)] = None


@dataclass(frozen=True, slots=True)
class Confusion:
    """Images of the class `truth` predicted as `predicted`; `share`: their share of that class."""

    truth: Annotated[int, column(rank=3)]
    truth_label: str | None
    predicted: Annotated[int, column(rank=3)]
    predicted_label: str | None
    count: Annotated[int, count(rank=0)]
    share: Annotated[float, share(rank=0)]


@dataclass(frozen=True, slots=True)
class ConfidenceBin:
    """Images whose confidence is above `low` and up to `high`: their mean confidence, and how many are right.

    `confidence` and `accuracy` are None without images.
    """

    low: Annotated[float, column(rank=0)]
    high: Annotated[float, column(rank=0)]
    n: Annotated[int, count(rank=0)]
    confidence: Annotated[float | None, share(rank=0)]
    accuracy: Annotated[float | None, share(rank=0)]


@dataclass(frozen=True, slots=True)
class Mistake:
    """An image of the classes `truth` and the score of the class `predicted`, which is none of them; or of labels
    one of them that is missing in the prediction, `not cat`, with 1 - its score."""

    image: Annotated[str, words(rank=0)]
    truth: tuple[int, ...]
    truth_labels: tuple[str | None, ...]
    predicted: Annotated[int, column(rank=3)]
    predicted_label: str | None
    confidence: Annotated[float, share(rank=0)]


@dataclass(frozen=True, slots=True)
class TruthReport:
    """A model's predictions against the truth.

    Attributes:
        kind: `classes`, one of each image, or `labels`, several or none of each image.
        images: number of images that could be judged. `not_judged`: those whose scores are NaN, their number
            and the first ten.
        accuracy: share of the images whose likeliest class is the true one. `top5_accuracy`: whose true class is
            among the five likeliest, of more than five classes. None of labels.
        macro_precision, macro_recall, macro_f1: means over the classes that are in the truth or in a prediction, of
            labels over those that are in the truth; of a class that is never predicted the precision counts as 0,
            of one that is never true the recall. None where there are none.
        micro_precision, micro_recall, micro_f1: of all decisions together, of labels only. None where there is
            nothing to divide by.
        exact_match: share of the images whose predicted labels are the true ones, all of them; of labels only.
        ece: expected calibration error, the mean over the images of |accuracy - confidence| of their bin: 15 of
            equal width, without their lower edge and with the upper one (Guo et al. 2017, "On calibration of
            modern neural networks"). `bins`: these; both of classes only.
        classes: all of them, in their order.
        confusions: the most frequent first, up to 100 pairs; none of labels.
        worst: the images with the highest score of a wrong class, or the most certain wrong label, up to 24.
        other_order: of the labels by the predictions, in words; None if it is the given one, or not clear.
    """

    kind: str
    images: int
    accuracy: Share | None = None
    top5_accuracy: Share | None = None
    macro_precision: float | None = None
    macro_recall: float | None = None
    micro_precision: float | None = None
    micro_recall: float | None = None
    ece: float | None = None
    bins: tuple[ConfidenceBin, ...] = ()
    classes: tuple[ClassQuality, ...] = ()
    confusions: tuple[Confusion, ...] = ()
    worst: tuple[Mistake, ...] = ()
    other_order: str | None = None
    not_judged: tuple[BrokenKind, ...] = ()
    exact_match: Share | None = None
    macro_f1: float | None = None
    micro_f1: float | None = None

    def measures(self) -> list[Measure]:
        """Return the metrics over all images, one per row of the table."""
        shares = {"accuracy": "accuracy", "top5_accuracy": "top-5 accuracy", "exact_match": "exact match"}
        figures = {
            "macro_f1": "F1, mean over classes",
            "micro_f1": "F1, all together",
            "macro_precision": "precision, mean over classes",
            "macro_recall": "recall, mean over classes",
            "micro_precision": "precision, all together",
            "micro_recall": "recall, all together",
            "ece": "calibration error",
        }
        measures = [
            Measure(key, name, share.value, share.low, share.high)
            for key, name in shares.items()
            if (share := getattr(self, key)) is not None
        ]
        return measures + [
            Measure(key, name, value)
            for key, name in figures.items()
            if (value := getattr(self, key)) is not None
        ]


@dataclass(frozen=True, slots=True)
class Guess:
    """One class of a prediction.

    Attributes:
        label: its name; None where it is unknown.
        score: probability, 0..1, after the activation; for pixels the mean over those of the class.
        logit: output of the model; None for a box, which only has a score.
        share: fraction of the pixels of the image, 0..1, that the class covers; else None.
        box: x0, y0, x1, y1 in pixels of the image file, of tensors of the input; else None.
    """

    index: int
    label: str | None
    score: float
    logit: float | None
    share: float | None = None
    box: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The numbers of an image, such as the depth of every pixel, as the model outputs them."""

    least: float
    median: float
    mean: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best guesses for one image, likeliest first; `image` is its file name, or its number from 0.

    Attributes:
        values: of an output that is not scores, such as a depth map, which has no guesses; else None.
        numbers: these in their order, if they are not those of a map and at most 1024; else empty.
    """

    image: str
    top: tuple[Guess, ...]
    values: ValueRange | None = None
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class DrawnMap:
    """The depths or the classes of the pixels of one image.

    Attributes:
        name: its file, or its number.
        picture: the image as the model saw it, `(3, H, W)` uint8; None for tensors.
        values: a tensor in the size of the input, `(H, W)`, or `(D, H, W)` of a volume.
    """

    name: str
    picture: Any
    values: Any


@dataclass(frozen=True, slots=True)
class PredictedImages:
    """What a run keeps for its figures; the images are read again when these are drawn.

    Attributes:
        maps: returns the maps of the first images.
        worst: returns the images of `TruthReport.worst`, `(3, H, W)` uint8.
    """

    maps: Callable[[], Sequence[DrawnMap]]
    worst: Callable[[], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class PredictRecord(Record):
    """What `predict` returns.

    Attributes:
        activation: `softmax` or `sigmoid`. `threshold`: the lowest score of a predicted class; None with softmax.
        classes: number of classes that the model knows; 0 for boxes with unknown labels.
        output: what the model outputs: `classes`, `pixels`, `boxes`, `depth`, one value per pixel, or `vectors`,
            other numbers.
        truth: how accurate the predictions are; None without a truth. If it was given, not found in folder names,
            no prediction is kept. `out_dir`, `files`: the folder that was written, and what is in it.
    """

    document: ClassVar[str] = "predict"
    predictions: tuple[Prediction, ...]
    activation: str
    classes: int
    threshold: float | None = None
    output: str = "classes"
    hooks: tuple[HookReport, ...] = ()
    truth: TruthReport | None = None
    out_dir: str | None = None
    files: tuple[str, ...] = ()

    def labelled(self) -> list[tuple[str, Any]]:
        """Return the predictions by image; with ground truth, the metrics by key."""
        if self.truth is not None:
            return [(measure.key, measure) for measure in self.truth.measures()]
        return [(prediction.image, prediction) for prediction in self.predictions]


@dataclass(frozen=True, slots=True)
class Variation(Row):
    """The same images, prepared in another way. All means are over the images.

    Attributes:
        name: what it is called: `BGR`. The first of the record is `reference`: all others are compared with it.
        kind: `meant`, `crop`, `resize`, `values`, `channels` or `turning`.
        what: what it does, in words.
        affected: number of images whose preprocessed values differ from those of the reference.
        changed: number of images whose prediction differs from that of the reference, or is NaN.
        probability_change: mean of |p - p of the reference|, of the class that the reference predicts.
        kl_divergence: mean of KL(reference || varied), in nats.
        accuracy: share of images whose prediction is the class that their folder is named after; None if the
            folders are not named after classes.
    """

    name: Annotated[str, words("variation", rank=0, key="variation")]
    kind: Annotated[str, words(is_shown=False)]
    what: str
    affected: Annotated[int, hidden()]
    changed: Annotated[int, column(rank=0)]
    probability_change: Annotated[float, share("probability change")]
    kl_divergence: Annotated[float, figure("KL (nats)", rank=2)]
    accuracy: Annotated[float | None, share(rank=0)] = None


@dataclass(frozen=True, slots=True)
class DoctorRecord(Record):
    """What `predict --doctor` returns.

    Attributes:
        images: number of images.
        classes: number of classes that the model knows.
        meant: the preprocessing that all others are compared with, in words.
        variations: the most different first, by `changed`, then by `kl_divergence`; `reference` is the last.
        left_out: why some variations are missing; None if none is.
        other_order: as in `TruthReport`, for the reference.
    """

    document: ClassVar[str] = "predict-doctor"
    images: int
    classes: int
    meant: str
    variations: tuple[Variation, ...]
    left_out: str | None = None
    other_order: str | None = None
