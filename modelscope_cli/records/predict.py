"""What `predict` returns; its guesses are also what other commands say of a prediction."""

from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.certificate import Certificate
from modelscope_cli.records.hooks import HookReport
from modelscope_cli.records.run import Record
from modelscope_cli.records.truth import TruthReport


@dataclass(frozen=True, slots=True)
class Guess:
    """One class of a prediction.

    Attributes:
        label: its name; None where nobody knows.
        score: probability, 0..1, after the activation; of pixels the mean over those that are the class.
        logit: what the model gave; None of a box, which has a score alone.
        share: of the pixels of the image, 0..1; None where the prediction is not one of pixels.
        box: x0, y0, x1, y1 in pixels of the image as the model was given it; None where it is not a box.
    """

    index: int
    label: str | None
    score: float
    logit: float | None
    share: float | None = None
    box: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """The best guesses for one image, likeliest first; `image` is its file name, or its number from 0.

    Attributes:
        head: the path of the tensor they were read from, where the model has several heads; else None.
    """

    image: str
    top: tuple[Guess, ...]
    head: str | None = None


@dataclass(frozen=True, slots=True)
class PredictRecord(Record):
    """What `predict` returns.

    Attributes:
        activation: `softmax` or `sigmoid`. `threshold`: from this score on a class is on; None with softmax.
        classes: how many the model knows; 0 of boxes whose labels nobody knows.
        output: what the model gives: `classes`, `pixels`, `boxes`, or `heads`, several of the first two.
        truth: how far the predictions are right; None where nobody gave the truth. Where somebody did, no
            prediction is kept. `out_dir`, `files`: the folder that was written, and what is in it.
        certificate: of the blocks it was made of; None where it was made in one go.
    """

    predictions: tuple[Prediction, ...]
    activation: str
    temperature: float
    classes: int
    threshold: float | None = None
    output: str = "classes"
    hooks: tuple[HookReport, ...] = ()
    truth: TruthReport | None = None
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    certificate: Certificate | None = None

    def labelled(self) -> list[tuple[str, Any]]:
        """Return the predictions by image, as the table has a row a guess; of a truth its figures by key."""
        if self.truth is not None:
            return [(measure.key, measure) for measure in self.truth.measures()]
        return [(prediction.image, prediction) for prediction in self.predictions]
