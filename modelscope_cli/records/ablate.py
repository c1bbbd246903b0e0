"""What `ablate` returns."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from modelscope_cli.records.display import Row, change, column, figure, hidden, share, words
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.run import HookReport, Record, Share


@dataclass(frozen=True, slots=True)
class Baseline:
    """The predictions of the intact model.

    Attributes:
        target: what is measured, in words.
        target_index: None if it is not a class, or if each image has its own prediction as target and
            they differ.
        target_logit, target_probability: score of the target, and its probability if it has one; means over the
            images.
        predictions: the top predictions for every image.
        accuracy: None where the folders of the images are not named after classes.
    """

    target: str
    target_index: int | None
    target_logit: float
    target_probability: float | None
    predictions: tuple[Prediction, ...]
    accuracy: Share | None = None


@dataclass(frozen=True, slots=True)
class Ablation(Row):
    """The effect of ablating one call of a layer, or one of its channels.

    Means over the images; a number is None if the ablated model gave NaN or an infinity.

    Attributes:
        order: index of the call in the pass.
        channel: None if all of them were ablated.
        target_logit_change: change of the target's score, after minus before.
        target_probability: of the target, after.
        prediction_changed: whether the prediction for any image (pixel) changed; where all scores are equal there
            is none, which counts as changed and as wrong.
        changed_fraction: fraction of them whose prediction changed, 0..1.
        kl_divergence: KL(before || after) of the softmax, nats; a mean over pixels.
        output_l2: Euclidean distance between the outputs before and after.
        answer_index, answer_label: the most frequent prediction after; None for images without one.
        answer_fraction: fraction of the images with it, 0..1.
        is_constant: whether the output after is the same for all images: nothing of the input reaches it.
        accuracy, accuracy_drop: after, and how much less than before, -1..1; None without classes.
    """

    name: str
    type: Annotated[str, words(rank=2)]
    order: Annotated[int, hidden()]
    call: int
    channel: Annotated[int | None, column(rank=0)]
    target_logit_change: Annotated[float | None, change(rank=0, key="logit_change")]
    target_probability: Annotated[float | None, share(rank=3, key="probability")]
    prediction_changed: bool
    changed_fraction: Annotated[float, share(rank=2, key="changed")]
    kl_divergence: Annotated[float | None, figure("KL (nats)", key="kl")]
    output_l2: Annotated[float | None, figure("L2", rank=4, key="l2")]
    answer_index: int | None
    answer_label: str | None
    accuracy: Share | None = None
    accuracy_drop: Annotated[float | None, share("accuracy drop", rank=0)] = None
    answer_fraction: float = 1.0
    is_constant: bool = False


@dataclass(frozen=True, slots=True)
class AblateRecord(Record):
    """What `ablate` returns; rows by their effect, the largest divergence first.

    Attributes:
        mode: `zero`, `mean` or `shuffle`: the replacement.
        unranked: how many rows, with the first, have a divergence within two standard errors of the first's.
        output: what the model outputs: scores of `classes` or of `pixels`.
        is_independent: whether an image can have several classes or none; each class is then predicted on or off.
        score_name: kind of the target's score: `logit`, `mean logit` or `value`.
        files: names inside `out_dir`; None and empty where nothing was saved.
    """

    document: ClassVar[str] = "ablate"
    baseline: Baseline
    rows: tuple[Ablation, ...]
    mode: str
    images: int
    classes: int
    output: str = "classes"
    is_independent: bool = False
    score_name: str = "logit"
    not_called: tuple[str, ...] = ()
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    unranked: int = 1
