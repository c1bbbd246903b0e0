"""What `explain` returns, and the test results (receipt) of a map."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, get_type_hints

from modelscope_cli.records.display import Row, column, hidden, share, signed, words
from modelscope_cli.records.run import HookReport, Record

PASSED, WEAK, FAILED, NOT_MADE, NOT_TESTED = "passed", "weak", "failed", "not made", "not tested"
QUICK, NONE = "quick", "none"
SCATTERED = "scattered"  # the place of a map that names none
RECEIPTS = (QUICK, NONE)
# A map with a rank correlation above this is also that of a model whose head is random. It was 0.0 for methods that
# are odd in the head, 0.8 at most for the magnitude of a gradient, and 0.85 and more for guided backprop.
MOST_HEAD = 0.8
LEAST_REPEATED = 0.7
LEAST_AGREEMENT = 0.3  # mean rank correlation with the other maps below which a map disagrees with them
MOST_OTHER_IMAGE = 0.999
MOST_INCOMPLETE = 0.1
MOST_SHOWN = 16  # images whose maps a record keeps, for the figure and the file of tensors
RULE = "sorted by failed tests, then by tests not run, weak maps last, scattered maps last, then by covering"


@dataclass(frozen=True, slots=True)
class TestJudgement:
    """The result of one test, or of all of them.

    Attributes:
        test: its name; `verdict` for all.
        answer: `passed`, `weak`, `failed` or `not made`, for all `not tested`; the most frequent of several images.
        reason: what failed, why it is weak, or why it was not made.
        passed, weak, failed, not_made: numbers of images.
    """

    test: str
    answer: str
    reason: str = ""
    passed: int = 0
    failed: int = 0
    not_made: int = 0
    weak: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """The test results of one map. A figure is None if it was not or cannot be measured.

    Over several images figures are means.

    Attributes:
        covering: correlation over random halves of the image between the map's remaining evidence and the score
            of the class in log odds. `covering_chance`: the 95th of the values of 99 shifted copies of the map.
        covering_margin: the standard error of that value; a map has to exceed their sum to pass; one above 0 that
            does not is weak.
        repeatability: rank correlation with the map made again, by the same method on the same image and model.
        other_image: rank correlation with the map of the image whose right half is covered. This test and those of
            repeatability and the head compare integrated gradients in 3 points.
        head_randomisation: mean rank correlation with the maps of the model with its last layer shuffled, and
            shuffled and negated: 0 for a map that rests on what the last layer weighs.
        failed: the tests that it failed, in words; a test that could not be run is only in `tests`.
        tests: the result of each; `verdict`: of all, `passed` only if nothing failed or was weak, and `repeat`,
            `covering` and `head` passed.
    """

    covering: Annotated[float | None, column(rank=0)] = None
    covering_chance: Annotated[float | None, hidden()] = None
    covering_margin: Annotated[float | None, hidden()] = None
    repeatability: Annotated[float | None, signed(rank=5)] = None
    other_image: Annotated[float | None, signed(rank=5)] = None
    head_randomisation: Annotated[float | None, signed(rank=2)] = None
    failed: tuple[str, ...] = ()
    tests: tuple[TestJudgement, ...] = ()
    verdict: TestJudgement | None = None


FIGURES = tuple(name for name, kind in get_type_hints(Receipt).items() if kind == float | None)
"""The names of the figures of a receipt that are one number each."""


@dataclass(frozen=True, slots=True)
class EvidenceBox:
    """The smallest box with half of the positive evidence of a map.

    Attributes:
        place: the part of the image with its centre: `top left`; `scattered` if the box is a third of it or more.
        share: of the area of the image, 0..1.
        box: left, top, right and bottom, in pixels of the preprocessed image.
    """

    place: str
    share: float
    box: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Explanation(Row):
    """One method: what its map is, and how far it can be trusted. Over several images figures are means.

    Attributes:
        layer: the explained layer; None for methods that work on pixels. `why`: why that layer, or how it was made.
        adds_up_to: the sum of a map in logits over what it has to be: the logit less that of the baseline, which is
            an image of zeros, or a layer of zeros. Over several images the median.
        completeness: integrated gradients: the difference of the sum from the change of the logit, relative to
            that change; the median over several images.
        receipt: the test results; empty with `receipt="none"`.
        where: the smallest box with half of the positive evidence; None over several images, or without any.
        places: the number of images by the place of that box, the most frequent first.
        agreement: the mean rank correlation with the maps of the other methods, averaged over the cells of the
            coarser of two maps, at most 7 x 7; None of a single map.
    """

    method: Annotated[str, words(rank=0)]
    layer: Annotated[str | None, words(rank=2)]
    why: str
    completeness: Annotated[float | None, hidden()]
    receipt: Receipt
    adds_up_to: Annotated[float | None, share("adds up to")] = None
    where: EvidenceBox | None = None
    places: Mapping[str, int] = field(default_factory=dict)
    agreement: Annotated[float | None, signed(rank=3)] = None


@dataclass(frozen=True, slots=True)
class ExplainRecord(Record):
    """What `explain` returns; the winner first, by `records.receipt.RULE`.

    Attributes:
        target: the class that is explained, in words; `predicted` where each image has its own.
        target_index: None if each image has its own.
        logit, probability: means over the images for that class; for other targets, the number that is followed,
            without a probability. `score_name`: name of that number: `logit`, `mean value`.
        images: number of images.
        failures: for several images, the first failed tests, with map and image: `covering of gradcam on cat.png`.
        unfit: methods that were left out, and why: `hirescam: this model has no feature map ...`.
        passed: with `require`, whether the winner passed its tests; otherwise True.
        tensors: the file of the maps; None where they were not saved.
        files: names inside `out_dir`; None and empty where nothing was saved.
        receipt_kind: `quick` or `none`.
        passes: images that went through the model, for maps and receipts; a backward pass adds nothing, nor does
            the pass that finds the layer for each image size.
    """

    document: ClassVar[str] = "explain"
    target: str
    target_index: int | None
    logit: float
    probability: float | None
    images: int
    rows: tuple[Explanation, ...]
    failures: tuple[str, ...] = ()
    unfit: tuple[str, ...] = ()
    passed: bool = True
    tensors: str | None = None
    out_dir: str | None = None
    files: tuple[str, ...] = ()
    hooks: tuple[HookReport, ...] = ()
    receipt_kind: str = QUICK
    passes: int = 0
    score_name: str = "logit"


@dataclass(frozen=True, slots=True)
class ShownMap:
    """The map of one method. Tensors are on the CPU."""

    cells: Any  # `(rows, columns)` float32, at the resolution of the layer or the image
    shown: Any  # the same at the size of the image, `(H, W)`
    units: str  # of the map; empty without one
    receipt: Receipt
    where: EvidenceBox | None


@dataclass(frozen=True, slots=True)
class ExplainedImage:
    """What a record keeps of one image, the first `MOST_SHOWN` of a run."""

    name: str  # the file's name, or a number
    # words, index: the target, and its class if it is one
    words: str
    index: int | None
    logit: float
    probability: float | None
    score_name: str  # what `logit` is
    picture: Any  # the image before normalisation, `(3, H, W)` uint8; None for noise and tensors
    maps: Mapping[str, ShownMap]  # by method
