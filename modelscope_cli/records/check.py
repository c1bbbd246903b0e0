"""What `check` and `rules` return."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, column, hidden, report, words
from modelscope_cli.records.predict import Share
from modelscope_cli.records.run import BrokenKind, Listing, Record, first_keys, to_plain
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
class SourceLine:
    """A line of a user's file, with its path relative to the root of the repository."""

    file: str
    line: int


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
class Finding(Row):
    """One violation of a rule.

    Attributes:
        rule: its name; `code` is what is stable.
        severity: `error` or `warning`.
        layer: the call it was seen at, `relu#1`; None for the model as a whole.
        value, threshold: in the rule's own measure; None where that is not a number (a shape, NaN).
        known: the baseline has it, so it does not count.
        made_at: where the layer or the model is created; None outside the user's files.
    """

    code: Annotated[str, words(rank=0)]
    rule: Annotated[str, words(rank=3)]
    severity: Annotated[str, words()]
    layer: Annotated[str | None, words(rank=0)]
    value: Annotated[int | float | None, hidden()]
    threshold: Annotated[int | float | str | None, hidden()]
    message: Annotated[str, words(rank=0, wraps=True)]
    hint: Annotated[str, words(is_shown=False, wraps=True)]
    known: Annotated[bool, hidden()] = False
    made_at: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class KnownFinding:
    """A finding as the baseline keeps it; `value` is None where there is none to compare."""

    code: str
    layer: str | None
    value: float | None = None


ERROR, WARNING = "error", "warning"
SEVERITIES = (WARNING, ERROR)
PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"


def is_as_severe(severity: str, least: str) -> bool:
    """Tell whether a severity is at or above another."""
    return SEVERITIES.index(severity) >= SEVERITIES.index(least)


def is_failed(findings: Iterable[Any], fail_on: str | None) -> bool:
    """Tell whether any finding is as severe as `fail_on`; never for None."""
    return fail_on is not None and any(is_as_severe(finding.severity, fail_on) for finding in findings)


@dataclass(frozen=True, slots=True)
class RuleText(Row):
    """The text of a rule.

    Attributes:
        code: stable, `MS203`; the hundreds are the group.
        sentence: what is wrong when it fires.
        threshold: a finding is beyond it; None for a budget, which is only judged once it is set.
        measure: the quantity of the threshold.
        source: where it comes from.
    """

    code: Annotated[str, words(rank=0)]
    name: Annotated[str, words(rank=0)]
    severity: Annotated[str, words(rank=2)]
    sentence: Annotated[str, words(wraps=True)]
    threshold: Annotated[int | float | str | None, column(rank=3)]
    measure: Annotated[str, words(rank=4, wraps=True)]
    source: Annotated[str, words(rank=5, wraps=True)]
    hint: Annotated[str, words(is_shown=False, wraps=True)]


@dataclass(frozen=True, slots=True)
class RuleInfo(RuleText):
    """A rule as it is listed, under the threshold in force.

    Attributes:
        why: the consequences of a violation. `silence`: what to do if it is intended.
        judged: False if it could not be judged, for `reason`.
    """

    why: Annotated[str, words(is_shown=False, wraps=True)] = ""
    silence: Annotated[str, words(is_shown=False, wraps=True)] = ""
    judged: bool = True
    reason: str | None = None


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


@dataclass(frozen=True, slots=True)
class RuleList(Listing):
    """What `rules` returns: no model was loaded, so it has a header of its own."""

    document: ClassVar[str] = "rules"
    rules: tuple[RuleInfo, ...]

    def to_dict(self) -> dict[str, Any]:
        rules = [
            {key: value for key, value in to_plain(rule).items() if key not in ("judged", "reason")}
            for rule in self.rules
        ]
        return {**first_keys(self.document, self.versions, self.argv), "rules": rules}
