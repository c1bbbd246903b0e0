"""What `predict --doctor` returns: how far predictions hang on the way images are prepared."""

from dataclasses import dataclass

from modelscope_cli.records.run import Record


@dataclass(frozen=True, slots=True)
class Variation:
    """The same images, prepared in another way. All means are over the images.

    Attributes:
        name: what it is called: `BGR`. The first of the record is `as meant`: all others are held against it.
        kind: `meant`, `given`, `crop`, `resize`, `values`, `channels` or `turning`.
        what: what it does, in words.
        affected: how many images the model gets other values of than as meant.
        changed: how many images have another prediction than as meant, or none that is a number.
        probability_change: mean of |p - p as meant|, of the class that is predicted as meant.
        kl_divergence: mean of KL(as meant || varied), in nats.
        top_probability: mean probability of the predicted class.
        predicted_classes: how many classes are predicted of some image.
        misfit: how far the values that enter the first batch norm are from its running statistics, those of the
            training: KL(images || training) of two normal distributions, the mean over channels, in nats; None
            without such a layer.
        accuracy: share of images whose prediction is the class that their folder is called after; None where the
            folders are not called after classes.
    """

    name: str
    kind: str
    what: str
    affected: int
    changed: int
    probability_change: float
    kl_divergence: float
    top_probability: float
    predicted_classes: int
    misfit: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for another preparation than the one that is meant; how sure the model is does not.

    Attributes:
        kind: `accuracy`, by the classes of the images, or `batch norm`, by what was seen in training.
        name: of the variation. `value`: of it; `as_meant`: of the preparation that is meant.
    """

    kind: str
    name: str
    value: float
    as_meant: float


@dataclass(frozen=True, slots=True)
class DoctorRecord(Record):
    """What `predict --doctor` returns.

    Attributes:
        images: how many.
        classes: how many the model knows.
        stated_by: who says how images are prepared for these weights, in words; None where nobody does.
        assumed: where nobody does: where the preparation that is used comes from.
        meant: the preparation that all others are held against, in words: the stated one, else the one in use.
        given: the options that ask for another preparation than the stated one, as typed; None without any.
        variations: the worst first, by `changed`, then by `kl_divergence`; `as meant` is the last.
        evidence: the strongest kind first.
        left_out: why some variations are missing; None where none is.
    """

    images: int
    classes: int
    stated_by: str | None
    assumed: str | None
    meant: str
    given: str | None
    variations: tuple[Variation, ...]
    evidence: tuple[Evidence, ...] = ()
    left_out: str | None = None

    @property
    def command(self) -> str:
        return "predict"  # whose mode it is
