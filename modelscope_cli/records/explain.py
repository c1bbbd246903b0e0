"""What `explain` returns."""

from dataclasses import dataclass

from modelscope_cli.records.certificate import Certificate
from modelscope_cli.records.hooks import HookReport
from modelscope_cli.records.receipt import QUICK, Receipt, RequirementMet, Whereabouts
from modelscope_cli.records.run import Record


@dataclass(frozen=True, slots=True)
class Explanation:
    """One method: what its map is, and how far it can be trusted. Over several images figures are means.

    Attributes:
        layer: where it explains; None for methods that go back to the pixels. `why`: why there, or how it was made.
        adds_up: the sum of the map as a share of the logit; None where that means nothing.
        adds_up_to: the same of what a map in logits has to add up to: the logit less that of the baseline, which is
            an image of zeros, a layer of zeros, or of LRP zero. Over several images the median.
        completeness: integrated gradients: how far the sum is from the change of the logit, relative to that; the
            median of several images.
        steps: passes over an image, of methods that take as many as they need.
        seconds: for one map, without the receipt.
        receipt: what the map was held against; only where it points with `receipt="none"`.
    """

    method: str
    layer: str | None
    why: str
    adds_up: float | None
    completeness: float | None
    steps: float | None
    seconds: float
    receipt: Receipt
    adds_up_to: float | None = None


@dataclass(frozen=True, slots=True)
class ExplainRecord(Record):
    """What `explain` returns; the winner first, by `records.receipt.RULE`.

    Attributes:
        target: the class that is explained, in words; `predicted` where each image has its own.
        target_index: None for the latter.
        logit, probability: of that class, means over the images.
        images: how many.
        unfit: methods that were left out, and why: `lrp: LRP knows networks of ReLUs, ...`.
        requirements: what became of each `require`, for the winner.
        passed: whether all were met.
        whereabouts: of several images, where the evidence lies; None for one. `whereabouts_method`: by whose maps:
            of the winner for the first image.
        tensors: the file of the maps; None without `save_tensors`.
        files: names inside `out_dir`; None and empty where nothing was saved.
        receipt_kind: `quick`, `full` or `none`.
        passes: images that went through the model, for maps and receipts; one that a gradient came back from counts
            once, and the one of each size in which the layer is found does not.
        certificate: of the blocks it was made of, one an image; None where it was made in one go.
    """

    target: str
    target_index: int | None
    logit: float
    probability: float
    images: int
    rows: tuple[Explanation, ...]
    unfit: tuple[str, ...] = ()
    requirements: tuple[RequirementMet, ...] = ()
    passed: bool = True
    whereabouts: Whereabouts | None = None
    whereabouts_method: str | None = None
    tensors: str | None = None
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    receipt_kind: str = QUICK
    passes: int = 0
    certificate: Certificate | None = None
