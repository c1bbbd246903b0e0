"""What holding the predictions for a batch against the truth brings: plain numbers that are added up later."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JudgedImage:
    """One image of which one class is true, or several or none.

    Attributes:
        number: in the list of images.
        truth: the classes that are true of it.
        predicted: of one class the five likeliest, the best first; of several those that are on.
        wrong: the class with the highest score of those that are predicted and not true; None where there is none.
        confidence: its score; where nothing is wrong that of the best class, of several classes None.
    """

    number: int
    image: str
    truth: tuple[int, ...]
    predicted: tuple[int, ...]
    wrong: int | None
    confidence: float | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch.

    Attributes:
        n_images: those that could be judged.
        not_numbers: the images whose scores are NaN, and so neither right nor wrong.
        pixels: how often a class that is true of a pixel meets one that is predicted: (truth, predicted, count).
    """

    n_classes: int
    n_images: int
    images: tuple[JudgedImage, ...] = ()
    pixels: tuple[tuple[int, int, int], ...] | None = None
    not_numbers: tuple[str, ...] = ()
