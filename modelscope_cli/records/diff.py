"""What `diff` returns."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, column, counter, figure, words
from modelscope_cli.records.naming import output_label_of
from modelscope_cli.records.predict import Guess
from modelscope_cli.records.run import ModelInfo, Record, Shape, Share

BY_WEIGHTS = "weights, shape and value, in execution order, as most names differ"
"""How the layers of two models with other names are matched."""
BY_VALUE = "shape and value, in execution order"
FOLDING = (
    1e-5  # relative to the largest value, or of the relative L2: what a layer or folding rounds in float32
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference(Row):
    """One item of A, of B, or of both.

    Figures have A as reference; None if nothing can be compared (`added`, `removed`, `reshaped`), the distances
    also where `nonfinite` is above 0.

    Attributes:
        status: `same` (within the tolerance), `changed`, `added` (only B has it), `removed` (only A has it),
            `reshaped`, `not tested` (B is an export, and one side has no value for it); for tensors also `retyped`
            (of another dtype, and not within a tolerance above 0), `renamed` (the same values under another
            name), and `folded` (a part of another tensor of B).
        max_abs, mean_abs: of a - b.
        rel_l2: |a - b| / |a|, infinite where A is all zeros and B is not.
        cosine: of the angle between a and b; None where just one of them is all zeros.
        differing: how many values are not equal, to the last bit; NaN equals NaN. `numel`: how many were compared,
            over all images.
        nonfinite: how many of the differing ones are NaN or infinite on one side, or differently on both.
        problem: why there are no figures although both have it.
    """

    name: str
    status: Annotated[str, words(rank=0)]
    max_abs: Annotated[float | None, figure("max |d|", rank=3)] = None
    mean_abs: Annotated[float | None, figure("mean |d|", rank=5)] = None
    rel_l2: Annotated[float | None, figure("rel L2", rank=0)] = None
    cosine: Annotated[float | None, column(rank=4)] = None
    differing: Annotated[int | None, column(rank=7)] = None
    numel: int | None = None
    nonfinite: Annotated[int | None, counter("NaN, inf")] = None
    shape: Shape | None = None
    b_shape: Shape | None = None
    dtype: str | None = None
    b_dtype: str | None = None
    problem: str | None = None

    @property
    def label(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDifference(Difference):
    """One tensor of a state dict.

    `b_name` where B has it under another name; `matched` where B has a convolution and its norm as one, or
    what codes were multiplied with.
    """

    b_name: str | None = None
    matched: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference(Difference):
    """One output of one call of a layer, over all images; `order` is that in A, else in B.

    `matched` says how its value was found in a B that is a program, or why it was not; or its class in B if other.
    `rounding` is the relative L2 by which rounding alone changes this output of A, where the row counts as the same
    because of it; else None. `own_l2` is the relative L2 that the layer adds itself: how far it is from A's where
    both get what enters it in B, on the first batch; None where B computes the same, or has no value for it.
    """

    type: str
    order: int
    call: int
    output: str
    matched: str | None = None
    rounding: float | None = None
    own_l2: float | None = None

    @property
    def key(self) -> tuple[str, int, str]:
        """The name of the layer, its call and its output, which are those of the other side."""
        return self.name, self.call, self.output

    @property
    def label(self) -> str:
        """The name as in a layer pattern, and which of several outputs."""
        return output_label_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference(Difference):
    """One number of one row of two saved results.

    Attributes:
        rel_l2: |a - b| / |a|; of the statistics of a layer relative to the size of its values.
        figure: the key of its column; empty for a row that only one of them has.
        a, b: the numbers; None where there is none, or where it is not finite.
    """

    figure: str
    a: float | None = None
    b: float | None = None

    @property
    def label(self) -> str:
        """The row and its figure."""
        return f"{self.name} {self.figure}".strip()


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One setting under which two saved results were made differently, in words."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Renaming:
    """Names of A that begin with `prefix` are those of B that begin with `b_prefix`; `tensors` of them fit."""

    prefix: str
    b_prefix: str
    tensors: int


@dataclass(frozen=True, slots=True)
class Cause:
    """Why B gives different results, as a check has shown.

    Attributes:
        kind: a stable word: `training_mode`, `channel_order`, `epsilon`, ...
        layer: where it acts; None for the inputs, the outputs or the whole model.
        message: what it is and what showed it.
        hint: what to do; may be empty.
    """

    kind: str
    layer: str | None
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class ChangedPrediction:
    """An image, by its file or number, and the classes with the highest scores in A and B; `score`: by softmax."""

    image: str
    a: Guess
    b: Guess


@dataclass(frozen=True, slots=True)
class ClassAccuracy:
    """A class, its images, and how many of them A and B predict as it."""

    label: str
    images: int
    a: int
    b: int


@dataclass(frozen=True, slots=True)
class DiffAccuracy:
    """The shares of the images that A and B predict as the class of their folder.

    Attributes:
        only_a, only_b: images that only one of them predicts so.
        is_order_assumed: whether the classes have no names, and are taken to be the folders in alphabetical order.
        classes: those of which B is right more or less often than A, the largest loss first.
    """

    a: Share
    b: Share
    only_a: int
    only_b: int
    is_order_assumed: bool
    classes: tuple[ClassAccuracy, ...] = ()

    @property
    def p_value(self) -> float:
        """How often chance alone would make `only_a` and `only_b` differ as much: the exact sign test."""
        n, fewer = self.only_a + self.only_b, min(self.only_a, self.only_b)
        return min(2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n, 1.0)


@dataclass(frozen=True, slots=True)
class DiffTotals:
    """How many rows there are of each status; `compared` have figures."""

    compared: int
    same: int
    changed: int
    added: int
    removed: int
    reshaped: int
    retyped: int
    renamed: int
    not_tested: int = 0
    folded: int = 0


@dataclass(frozen=True, slots=True)
class DiffSide:
    """The other side; A is in the header. `mode` is None where nothing was run."""

    model: ModelInfo
    device: str
    dtype: str
    seed: int | None
    mode: str | None


@dataclass(frozen=True, slots=True)
class DiffRecord(Record):
    """What `diff` returns.

    Attributes:
        mode: mode of A.
        tolerance: on `rel_l2`; more than this is a change. `tolerance_reason` says where it comes from.
        first_divergence: label of the first row, in execution order, that both have and that differs.
        renamings: prefixes whose renaming makes names match.
        layers: in execution order; None if no model was run.
        tensors: in A's order; None if a model was run.
        figures: for two saved results, in A's order; else None.
        settings: for two saved results, what differs in how they were made: model, weights, seed, versions, ...
        matched_by: what layers were matched by, if B is a program or names its layers differently; else None.
        causes: why B gives different results, even within the tolerance; empty if no cause was shown.
        rounded: the half-precision dtype in which a side runs, or to which B rounds all weights of A, if the
            tolerance allows for its rounding; else None.
        labels_changed: how many images have a different highest output in B; None without images or classes.
        changed_predictions: these images. `ties`: in how many images several classes share the highest score of B.
        accuracy: that of both; None unless the folders are the classes and B's order is known.
        operators: how many operators of two ONNX files or torch.export programs were compared; 0 if none were.
        sizes: how many innermost layers and parameters A and B have, if their architectures differ and only outputs
            are compared; else empty.
    """

    document: ClassVar[str] = "diff"
    b: DiffSide
    mode: str | None
    tolerance: float
    tolerance_reason: str
    first_divergence: str | None
    totals: DiffTotals
    renamings: tuple[Renaming, ...] = ()
    images: int | None = None
    layers: tuple[LayerDifference, ...] | None = None
    tensors: tuple[TensorDifference, ...] | None = None
    figures: tuple[FigureDifference, ...] | None = None
    settings: tuple[SettingDifference, ...] = ()
    matched_by: str | None = None
    causes: tuple[Cause, ...] = ()
    labels_changed: int | None = None
    changed_predictions: tuple[ChangedPrediction, ...] = ()
    operators: int = 0
    sizes: tuple[tuple[int, int], ...] = ()
    ties: int = 0
    rounded: str | None = None
    accuracy: DiffAccuracy | None = None

    @property
    def rows(self) -> tuple[Difference, ...]:
        """The layers, the tensors, or the figures."""
        return next((rows for rows in (self.layers, self.tensors, self.figures) if rows is not None), ())

    @property
    def outcome(self) -> str:
        """`different`, `the same`, or `not tested`: an output, or every row."""
        is_other = self.layers is None and any(one.kind == "operator" for one in self.causes)
        if is_other or self.totals.same + self.totals.not_tested + self.totals.folded < len(self.rows):
            return "different"
        untested = [row for row in self.rows if row.status == "not tested"]
        has_output = all(row.name for row in untested)
        return "the same" if has_output and len(untested) < max(len(self.rows), 1) else "not tested"

    @property
    def is_same(self) -> bool:
        """Whether nothing differs beyond the tolerance, and what had to be compared was."""
        return self.outcome == "the same"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON document, with `layers`, `tensors` or `figures` and `settings`."""
        document = Record.to_dict(self)
        for key in ("layers", "tensors", "figures"):
            if document[key] is None:
                del document[key]
        if not self.settings:
            del document["settings"]
        return document


def count_up(rows: tuple[Difference, ...]) -> DiffTotals:
    statuses = [row.status for row in rows]
    names = ("same", "changed", "added", "removed", "reshaped", "retyped", "renamed", "not tested", "folded")
    return DiffTotals(sum(row.differing is not None for row in rows), *map(statuses.count, names))


_OF_ONE_SIDE = ("same", "renamed", "added", "removed", "not tested", "folded")


def first_divergence(rows: tuple[Difference, ...]) -> str | None:
    """Return the label of the first row that both sides have and that is not the same."""
    return next((row.label for row in rows if row.status not in _OF_ONE_SIDE), None)
