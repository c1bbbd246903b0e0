"""What `check` and `rules` return."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from modelscope_cli.records.display import report
from modelscope_cli.records.findings import NO_NORM, Finding, KnownFinding, RuleInfo
from modelscope_cli.records.run import BrokenKind, Record, Share
from modelscope_cli.records.stats import InputStats


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Images with the same pixels, in the order of the list.

    Attributes:
        labels: the names of their folders, each once; empty if images are not in folders of classes.
    """

    images: tuple[str, ...]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """A data set without its model.

    Attributes:
        folders: as typed. `against`: the data sets that it was compared with.
        images: number of images in all; `against_images`: in those of `against`.
        broken: those that cannot be decoded, by kind.
        identical: groups of images with the same pixels within one data set.
        leaks: groups with images in several data sets: the first, those in other data sets, those in its own.
        near: groups of an image and those of later data sets that look like it.
        conflicts: groups whose images are in folders of different classes.
        sizes: width and height of the images with the fewest and the most pixels, once if they are the same.
        other_aspect: number of images whose aspect ratio is not within 10 % of the median.
        modes: number of images for each of Pillow's modes, the most frequent first. `mode_names`: the first three
            images of each other mode.
    """

    folders: tuple[str, ...]
    against: tuple[str, ...]
    images: int
    against_images: int
    broken: tuple[BrokenKind, ...]
    identical: tuple[CopyGroup, ...]
    leaks: tuple[CopyGroup, ...]
    conflicts: tuple[CopyGroup, ...]
    sizes: tuple[tuple[int, int], ...] = ()
    other_aspect: int = 0
    modes: Mapping[str, int] = field(default_factory=dict)
    near: tuple[CopyGroup, ...] = ()
    mode_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DatasetEvidence:
    """The report, and what the rules need besides.

    Attributes:
        names: of the images that can be decoded.
        readable: number of data sets with an image that can be decoded.
        sets: folders and number of images by class, for each data set.
        one_colour: names of the images in which all pixels have the same colour.
    """

    report: DatasetReport
    names: Sequence[str]
    readable: int
    sets: Sequence[tuple[Sequence[str], Mapping[str, int]]]
    one_colour: Sequence[str] = ()


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
        rules: the selected ones.
        passed: whether some rule was judged, and no finding at or above `fail_on` is missing from the baseline.
        dataset: report on a data set checked without a model; else None. `mode` is then `none`, and a finding's
            `layer` is its image.
        inputs: what entered the model, one per argument; empty if no selected rule needs it.
        accuracy: accuracy on images in folders named after the classes; None if unknown, or if no rule needs it.
        mode: mode of the forward and backward passes: `eval` or `train`.
        baseline: the file that findings were compared with; None without one. `gone`: its findings that no longer
            occur.
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
        """The rules that apply and could not be judged; `reason` says why."""
        return tuple(rule for rule in self.rules if not rule.judged and rule.reason != NO_NORM)

    def assert_passed(self) -> None:
        """Do nothing where it passed, so that a test can end with this."""
        __tracebackhide__ = True
        if not self.passed:
            raise AssertionError(report().view_of(self).verdict(self))
