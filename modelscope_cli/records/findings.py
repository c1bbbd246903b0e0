"""Rules and what they found."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from modelscope_cli.records.display import Row, column, hidden, words
from modelscope_cli.records.run import Listing, first_keys, to_plain


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a user's file, with its path relative to the root of the repository."""

    file: str
    line: int


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
WARNING_OR_ERROR = f"{WARNING} or {ERROR}"
SEVERITIES = (WARNING, ERROR)
NEVER = "never"
PASSED, FAILED, NOT_JUDGED = "passed", "failed", "not judged"
NO_NORM = "does not apply: no layer is such a norm"  # the reason of a rule that is not missed


def is_as_severe(severity: str, least: str) -> bool:
    """Tell whether a severity is at or above another; none is at `never`."""
    return least != NEVER and SEVERITIES.index(severity) >= SEVERITIES.index(least)


def is_failed(findings: Iterable[Any], fail_on: str | None) -> bool:
    """Tell whether any finding is as severe as `fail_on`; never for None."""
    return fail_on is not None and any(is_as_severe(finding.severity, fail_on) for finding in findings)


@dataclass(frozen=True, slots=True)
class RuleText(Row):
    """The text of a rule.

    Attributes:
        code: stable, `MS203`; the hundreds are the group.
        severity: of its findings: `error`, `warning`, or `warning or error`.
        sentence: what is wrong when it fires.
        threshold: a finding is beyond it; None for a budget, which is only judged once it is set.
        measure: the quantity of the threshold.
        source: where it comes from.
        error_if: when a finding is an error, where the severity is `warning or error`.
    """

    code: Annotated[str, words(rank=0)]
    name: Annotated[str, words(rank=0)]
    severity: Annotated[str, words(rank=2)]
    sentence: Annotated[str, words(wraps=True)]
    threshold: Annotated[int | float | str | None, column(rank=3)]
    measure: Annotated[str, words(rank=4, wraps=True)]
    source: Annotated[str, words(rank=5, wraps=True)]
    hint: Annotated[str, words(is_shown=False, wraps=True)]
    error_if: Annotated[str, words(is_shown=False, wraps=True)] = ""

    @property
    def level(self) -> str:
        """The severity of a finding for which the rule sets no other."""
        return ERROR if self.severity == ERROR else WARNING


@dataclass(frozen=True, slots=True)
class RuleInfo(RuleText):
    """A rule as it is listed, under the threshold in force.

    Attributes:
        why: the consequences of a violation. `silence`: what to do if it is intended.
        judged: False if it could not be judged, for `reason`. `measured`: value and limit of a budget that is met.
    """

    why: Annotated[str, words(is_shown=False, wraps=True)] = ""
    silence: Annotated[str, words(is_shown=False, wraps=True)] = ""
    judged: bool = True
    reason: str | None = None
    measured: str | None = None


@dataclass(frozen=True, slots=True)
class RuleList(Listing):
    """What `rules` returns: no model was loaded, so it has a header of its own."""

    document: ClassVar[str] = "rules"
    rules: tuple[RuleInfo, ...]

    def to_dict(self) -> dict[str, Any]:
        rules = [
            {key: one for key, one in to_plain(rule).items() if key not in ("judged", "reason", "measured")}
            for rule in self.rules
        ]
        return {**first_keys(self.document, self.versions, self.argv), "rules": rules}
