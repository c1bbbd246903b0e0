"""What `check` and `rules` return."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from modelscope_cli.records.display import report
from modelscope_cli.records.findings import Finding, KnownFinding, RuleInfo
from modelscope_cli.records.predict import Share
from modelscope_cli.records.run import BrokenKind, Record
from modelscope_cli.records.stats import InputStats

BYTES, PIXELS = "the same bytes", "the same pixels"


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Images that are copies of one another, in the order of the list.

    Attributes:
        how: `the same bytes`, or `the same pixels` where some of the files differ.
        labels: the names of their folders, each once; empty if images are not in folders of classes.
    """

    how: str
    images: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, median and largest value over the images; None without images."""

    least: int | float
    median: int | float
    most: int | float


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """A data set without its model.

    Attributes:
        folders: as typed. `against`: the data set that it was compared with.
        images: number of images in both; `against_images`: in the second.
        broken: those that cannot be decoded, by kind.
        identical: groups of images with the same pixels within one data set.
        leaks: groups with images in both data sets, those of the first before those of the second.
        conflicts: groups whose images are in folders of different classes.
        width, height: in pixels, of those that can be decoded.
        images_per_second: read and decoded.
    """

    folders: tuple[str, ...]
    against: tuple[str, ...]
    images: int
    against_images: int
    broken: tuple[BrokenKind, ...]
    identical: tuple[CopyGroup, ...]
    leaks: tuple[CopyGroup, ...]
    conflicts: tuple[CopyGroup, ...]
    width: Spread | None
    height: Spread | None
    images_per_second: float


@dataclass(frozen=True, slots=True)
class DatasetEvidence:
    """The report, and what the rules need besides.

    Attributes:
        names: of the images that can be decoded.
        has_labels: whether any image is in the folder of a class.
        readable: number of images that can be decoded, in each data set.
        classes: number of images by class, for each data set.
    """

    report: DatasetReport
    names: Sequence[str]
    has_labels: bool
    readable: tuple[int, int]
    classes: tuple[Mapping[str, int], Mapping[str, int]]


def spread_of(values: Iterable[int]) -> Spread | None:
    """Return smallest, median (the lower of two) and largest value; None without values."""
    ordered = sorted(values)
    return Spread(ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]) if ordered else None


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The predictions for images in folders named after the classes.

    Attributes:
        right: share of the predictions that are the class of the folder.
        images: those compared.
        chance: share of the images in the most frequent class, `most_frequent`.
    """

    right: Share
    images: int
    chance: float
    most_frequent: str


@dataclass(frozen=True, slots=True)
class CheckRecord(Record):
    """What `check` returns.

    Attributes:
        findings: errors first, then by code and in execution order.
        rules: those that were selected.
        passed: some rule was judged, and there is no finding at or above `fail_on` that the baseline does not have.
        dataset: of a data set that was checked without a model; else None. `mode` is `none` then, and a finding's
            `layer` the image it is about.
        inputs: what entered the model, one an argument; empty where no selected rule looks at it.
        accuracy: of images in folders named after the classes; None where that is not known, or no rule asks.
        mode: `eval` or `train`: of the forward and backward passes.
        baseline: the file the findings were held against; None without one. `gone`: what it has and occurs no more.
        verdict: `passed`, `failed`, or `not judged`: no rule was, or most of the images could not be read.
    """

    document: ClassVar[str] = "check"
    findings: tuple[Finding, ...]
    rules: tuple[RuleInfo, ...]
    passed: bool
    fail_on: str
    mode: str
    images: int
    baseline: str | None = None
    gone: tuple[KnownFinding, ...] = ()
    inputs: tuple[InputStats, ...] = ()
    dataset: DatasetReport | None = None
    verdict: str = ""
    accuracy: Accuracy | None = None

    @property
    def unjudged(self) -> tuple[RuleInfo, ...]:
        """The rules that were selected and could not be judged; `reason` says why."""
        return tuple(rule for rule in self.rules if not rule.judged)

    def assert_passed(self) -> None:
        """Do nothing where it passed, so that a test can end with this."""
        __tracebackhide__ = True
        if not self.passed:
            raise AssertionError(report().view_of(self).verdict(self))
