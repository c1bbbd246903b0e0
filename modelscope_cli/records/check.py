"""What `check` and `rules` return."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from modelscope_cli.records.certificate import Certificate
from modelscope_cli.records.dataset import DatasetReport
from modelscope_cli.records.run import Record, first_keys, to_plain
from modelscope_cli.records.shown import Shown
from modelscope_cli.records.stats import InputStats


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a file of yours, its path as seen from the root of the repository."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of a rule.

    Attributes:
        rule: its name; `code` is what is stable.
        severity: `error` or `warning`.
        layer: the call it was seen at, `relu#1`; None for the model as a whole.
        value, threshold: in the rule's own measure; None where that is not a number (a shape, NaN).
        known: the baseline has it, so it does not count.
        made_at: where the layer, or the model, is made; None where that is not in a file of yours.
    """

    code: str
    rule: str
    severity: str
    layer: str | None
    value: float | None
    threshold: float | str | None
    message: str
    hint: str
    known: bool = False
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
    """Tell whether any finding is as severe as that; None lets everything pass."""
    return fail_on is not None and any(is_as_severe(finding.severity, fail_on) for finding in findings)


@dataclass(frozen=True, slots=True)
class RuleText:
    """What there is to say of a rule.

    Attributes:
        code: stable, `MS203`; the hundreds are the group.
        sentence: what is wrong when it fires.
        threshold: a finding lies beyond it; None for a budget, which is only judged once somebody sets it.
        measure: of what the threshold is.
        source: where it comes from.
    """

    code: str
    name: str
    severity: str
    sentence: str
    threshold: float | str | None
    measure: str
    source: str
    hint: str


@dataclass(frozen=True, slots=True)
class RuleInfo(RuleText):
    """A rule as it is listed, under the threshold in force.

    Attributes:
        why: what follows where it is broken. `silence`: what to do where that is meant.
        judged: False where it could not be, and `reason` says why.
    """

    why: str = ""
    silence: str = ""
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
        mode: `eval` or `train`: of the forward and backward passes.
        baseline: the file the findings were held against; None without one. `gone`: what it has and occurs no more.
        certificate: of the blocks of the forward pass; None where it was made in one go.
        verdict: `passed`, `failed`, or `not judged`: no rule was, or most of the images could not be read.
    """

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
    certificate: Certificate | None = None
    verdict: str = ""

    @property
    def unjudged(self) -> tuple[RuleInfo, ...]:
        """The rules that were selected and could not be judged; `reason` says why."""
        return tuple(rule for rule in self.rules if not rule.judged)

    def assert_passed(self) -> None:
        """Do nothing where it passed, so that a test can end with this.

        Raises:
            AssertionError: reads like the verdict on the terminal.
        """
        __tracebackhide__ = True
        if not self.passed:
            from modelscope_cli.report.views import table_of

            raise AssertionError(table_of("check").verdict(self))


@dataclass(frozen=True, slots=True)
class RuleList(Shown):
    """What `rules` returns: no model was loaded, so it has a header of its own."""

    versions: Mapping[str, str]
    argv: tuple[str, ...]
    rules: tuple[RuleInfo, ...]

    @property
    def command(self) -> str:
        return "rules"

    def to_dict(self) -> dict[str, Any]:
        own = [
            {key: value for key, value in to_plain(rule).items() if key not in ("judged", "reason")}
            for rule in self.rules
        ]
        return {**first_keys("rules", self.versions, self.argv), "rules": own}
