"""What `predict` returns; its guesses are also what other commands say of a prediction."""

from dataclasses import dataclass

from modelscope_cli.records.hooks import HookReport
from modelscope_cli.records.run import Record


@dataclass(frozen=True, slots=True)
class Guess:
    """One class of a prediction.

    Attributes:
        label: its name; None where nobody knows.
        score: probability, 0..1, after the activation. `logit`: what the model gave.
    """

    index: int
    label: str | None
    score: float
    logit: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best guesses for one image, likeliest first; `image` is its file name, or its number from 0."""

    image: str
    top: tuple[Guess, ...]


@dataclass(frozen=True, slots=True)
class PredictRecord(Record):
    """What `predict` returns.

    Attributes:
        activation: `softmax` or `sigmoid`. `threshold`: from this score on a class is on; None with softmax.
        classes: how many the model knows.
    """

    predictions: tuple[Prediction, ...]
    activation: str
    temperature: float
    classes: int
    threshold: float | None = None
    hooks: tuple[HookReport, ...] = ()

    def labelled(self) -> list[tuple[str, Prediction]]:
        """Return the predictions by image; the table has a row a guess."""
        return [(prediction.image, prediction) for prediction in self.predictions]
