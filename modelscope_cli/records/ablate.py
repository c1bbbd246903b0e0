"""What `ablate` returns."""

from dataclasses import dataclass
from typing import Annotated

from modelscope_cli.records.columns import change, column, figure, hidden, share, words
from modelscope_cli.records.predict import Prediction
from modelscope_cli.records.run import HookReport, Record


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the whole model says.

    Attributes:
        target: whose number is followed, in words.
        target_index, target_label: None where every image is held against its own answer, and they differ, or
            where it is not a class.
        target_logit, target_probability: the number, and the same as a probability where it has one; means over
            the images.
        predictions: the best guesses for every image.
    """

    target: str
    target_index: int | None
    target_label: str | None
    target_logit: float
    target_probability: float | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True, slots=True)
class Ablation:
    """What becomes of the answer when one call of a layer, or one of its channels, is taken out.

    Means over the images; a number is None where the ablated model gave NaN or an infinity, or where its output
    has no such number: boxes and embeddings have no divergence, embeddings no prediction that could change.

    Attributes:
        order: place of the call in the pass.
        channel: None where all of them were taken out.
        mode: `zero`, `mean` or `shuffle`: what stood in.
        target_logit_change: of the followed number, after less before.
        target_probability: of the target, after.
        prediction_changed: whether the prediction for any image (pixel, box) is another one.
        changed_fraction: for how many of them, 0..1.
        kl_divergence: KL(before || after) of the softmax, nats; a mean over pixels.
        output_l2: Euclidean distance between the outputs before and after.
        answer_index, answer_label: the most frequent prediction after.
    """

    name: str
    type: Annotated[str, words(rank=0)]
    order: Annotated[int, hidden()]
    call: int
    channel: Annotated[int | None, column(rank=0)]
    mode: Annotated[str, words(is_shown=False)]
    target_logit_change: Annotated[float | None, change(rank=0, key="logit_change")]
    target_probability: Annotated[float | None, share(rank=2, key="probability")]
    prediction_changed: bool
    changed_fraction: Annotated[float | None, share(key="changed")]
    kl_divergence: Annotated[float | None, figure("KL", key="kl")]
    output_l2: Annotated[float | None, figure("L2", rank=4, key="l2")]
    answer_index: int | None
    answer_label: str | None


@dataclass(frozen=True, slots=True)
class AblateRecord(Record):
    """What `ablate` returns; rows by their effect, the largest divergence first.

    Attributes:
        mode: as in the rows.
        output: what the model gives: `classes`, `pixels`, `boxes`, `vectors` or `heads`.
        score_name: what the followed number is: `logit`, `mean logit`, `score`, `cosine similarity` or `value`.
        files: names inside `out_dir`; None and empty where nothing was saved.
    """

    baseline: Baseline
    rows: tuple[Ablation, ...]
    mode: str
    images: int
    classes: int
    output: str = "classes"
    score_name: str = "logit"
    not_called: tuple[str, ...] = ()
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()
