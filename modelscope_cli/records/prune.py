"""What `prune` returns."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from modelscope_cli.records.display import Row, column, count, figure, hidden, shape, share, words
from modelscope_cli.records.predict import Prediction, Share
from modelscope_cli.records.run import HookReport, Record, Shape

DEFAULT_SWEEP = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The shares at which `prune` measures the drift."""


@dataclass(frozen=True, slots=True)
class PrunedLayer(Row):
    """One weight at `amount`.

    Attributes:
        name, type: the layer that owns it. `parameter`: its name there, nearly always `weight`.
        zeros: of the pruned weight; `zeros_before`: those it had already.
        sparsity: zeros / numel.
    """

    name: str
    type: Annotated[str, words(rank=0)]
    parameter: str
    shape: Annotated[Shape, shape(rank=2)]
    numel: Annotated[int, count()]
    zeros: Annotated[int, count()]
    zeros_before: Annotated[int, hidden("zeros before")]
    sparsity: Annotated[float, share(rank=0)]


@dataclass(frozen=True, slots=True)
class PruneTotals:
    """Over all of `layers`; `params` are all parameters of the model, pruned or not."""

    layers: int
    numel: int
    zeros: int
    zeros_before: int
    sparsity: float
    params: int


@dataclass(frozen=True, slots=True)
class Drift(Row):
    """How far the answers are from the unpruned model's, with `amount` of the weights or channels cut.

    Attributes:
        zeros, sparsity: over all pruned layers.
        agreement: share of images (pixels) with the same prediction, 0..1; NaN never agrees.
        kl_divergence: KL(before || after) of the softmax in nats, mean over the images (pixels).
        max_logit_change: largest |after - before| of any number of the output over all images.
        accuracy: None where the folders of the images are not named after classes.
    """

    amount: Annotated[float, column(rank=0)]
    zeros: Annotated[int, count(rank=2)]
    sparsity: Annotated[float, share(rank=0)]
    agreement: float
    kl_divergence: Annotated[float, figure("KL (nats)")]
    max_logit_change: float
    accuracy: Share | None = None


@dataclass(frozen=True, slots=True)
class PruneRecord(Record):
    """What `prune` returns.

    Attributes:
        layers, totals, before, after: at `amount`; `before` and `after` are the guesses for each image.
        sweep: the drift at every amount, `amount` among them, in rising order.
        method: `l1`, `l2`, `random`.
        structured: whole output channels instead of single weights.
        scope: `layer` or `global`: whether an amount is a share of each layer or of all layers.
        images: how many the drift was measured on. `accuracy`: on them, unpruned; None without classes.
        output: what the model gives: scores of `classes` or of `pixels`.
        kept: the layer that makes the scores, where its channels, which are classes, were left out.
        file: the pruned weights, `file_bytes` long; None without `--save-weights`.
        out_dir, files: the report's folder and what is in it.
    """

    document: ClassVar[str] = "prune"
    layers: tuple[PrunedLayer, ...]
    totals: PruneTotals
    before: tuple[Prediction, ...]
    after: tuple[Prediction, ...]
    file: str | None
    sweep: tuple[Drift, ...]
    amount: float
    method: str
    structured: bool
    scope: str
    images: int
    output: str = "classes"
    accuracy: Share | None = None
    kept: str | None = None
    file_bytes: int | None = None
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()

    @property
    def what_is_cut(self) -> str:
        """In words, what an amount is a share of: `weights of the smallest |w| in each layer`."""
        unit = "output channels" if self.structured else "weights"
        which = {
            "l1": "smallest L1 norm" if self.structured else "smallest |w|",
            "l2": "smallest L2 norm" if self.structured else "smallest |w|",
            "random": "",
        }[self.method]
        where = "of all layers together" if self.scope == "global" else "in each layer"
        return f"{unit} of the {which} {where}" if which else f"{unit} at random {where}"
