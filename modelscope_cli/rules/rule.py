"""Define a rule and its thresholds, and judge evidence by rules."""

import inspect
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from modelscope_cli.errors import CannotRunError, UsageError
from modelscope_cli.records.findings import (
    ERROR,
    FAILED,
    NOT_JUDGED,
    PASSED,
    SEVERITIES,
    WARNING_OR_ERROR,
    Finding,
    RuleInfo,
    RuleText,
    is_as_severe,
)
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import InputInfo

if TYPE_CHECKING:  # they import the records of other commands
    from modelscope_cli.records.check import CheckRecord
    from modelscope_cli.records.check_evidence import Evidence

_COUNTS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_BYTES = {
    **{"": 1.0, "B": 1.0, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12},
    **{"KIB": 2.0**10, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40},
}
_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(I(?=B|$))?")
AnyRule = TypeVar("AnyRule", bound="ListedRule")
_KINDS = {  # of thresholds: in words, with an example
    "number": ("a number", "0.5"),
    "count": ("a count", "25M"),
    "bytes": ("an amount of memory", "500MB"),
    "shape": ("a shape", "1,1000"),
}


def read_threshold(typed: object, kind: str, option: str, most: float = math.inf) -> float | str:
    """Parse a threshold from the command line or `pyproject.toml`.

    Args:
        kind: `number`, `count`, `bytes` or `shape`, as in `Rule`.
        option: the text before it, for the error: `--set MS202=`.
        most: the largest threshold that can be reached.
    """
    text = ",".join(map(str, typed)) if isinstance(typed, list) else str(typed).strip()
    value = _shape(text) if kind == "shape" else _number(text, kind)
    words, example = _KINDS[kind]
    is_bare = isinstance(typed, str) and re.fullmatch(r"\d*\.0*[1-9]\d*", text)
    lacks_unit = is_bare and kind in ("count", "bytes")
    if value is None or lacks_unit or isinstance(typed, bool):
        started = _UNIT.match(text.upper()) if kind in ("count", "bytes") else None
        bytes_ = ("iB" if started and started[3] else "B") * (kind == "bytes")
        if lacks_unit:
            example = text + example.lstrip("0123456789")
        meant = f"{started[1]}{started[2]}{bytes_}" if started else example
        raise UsageError(f"'{option}{text}' is not {words}", f"{option}{meant}")
    if isinstance(value, float) and value > most:
        message = f"'{option}{text}' is above {most:g}, the largest possible value"
        percent = most == 1 and value <= 100
        raise UsageError(message, f"{option}{f'{value / 100:g}' if percent else example}")
    return value


def _shape(text: str) -> str | None:
    parts = [part.strip() for part in text.replace("x", ",").split(",")]
    is_size = all(part.isdecimal() and len(part) <= 18 for part in parts)
    return ",".join(str(int(part)) for part in parts) if is_size else None


def _number(text: str, kind: str) -> float | None:
    match = re.fullmatch(r"([+-]?[\d.]+(?:e[+-]?\d+)?)\s*([a-z]*|%)", text, re.IGNORECASE)
    units = {"number": {"": 1.0, "%": 0.01}, "count": _COUNTS, "bytes": _BYTES}[kind]
    if match is None or match[2].upper() not in units:
        return None
    try:
        value = float(match[1]) * units[match[2].upper()]
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def write_threshold(value: float | str | None, kind: str) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if kind == "number" or value < 1000:
        return f"{value:g}" + (" B" if kind == "bytes" else "")
    units = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
    unit, size = next(one for one in units if value >= one[1])
    return f"{value / size:.4g} {unit}" + ("B" if kind == "bytes" else "")


@dataclass(frozen=True, slots=True)
class Sighting:
    """One place where a rule is broken."""

    layer: str | None  # None for the whole model
    value: float | None
    message: str  # the observation, in words
    severity: str | None = None  # if other than the level of the rule
    is_met: bool = False  # whether a budget is met: not a finding
    is_rest: bool = False  # whether it summarises `value` more places beyond the threshold


def always(evidence: "Evidence", threshold: Any) -> str | None:
    """Return no excuse: the rule can always be judged."""
    return None


_BUDGETS, _TRAINING = "MS5", "MS7"


def _how_to_silence(code: str, name: str) -> str:
    """Return what to do if the finding is intended."""
    if code.startswith(_TRAINING):
        return "watch and train fail only with --fail-on, and --fail-on error lets warnings pass"
    if code.startswith(_BUDGETS):
        return f"leave out --{name}: a budget that is not set is not judged"
    accept = "accept these findings with --baseline known.json --update-baseline"
    if code == "MS201":
        return f"{accept}; a forward pass that is not finite always fails"
    return f'add --ignore {code}, or ignore = ["{code}"] in [tool.modelscope] of pyproject.toml, or {accept}'


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRule(RuleText):
    """The listing of a rule in `modelscope check --list`; `why`: the consequences of a violation."""

    why: str

    def info(self, threshold: float | str | None) -> RuleInfo:
        """Return the rule's listing with the threshold in force."""
        texts = {field.name: getattr(self, field.name) for field in fields(RuleText)}
        silence = _how_to_silence(self.code, self.name)
        return RuleInfo(**{**texts, "threshold": threshold, "why": self.why, "silence": silence})


def texts_of(judge: Callable[..., Any]) -> dict[str, str]:
    """Return the texts of a rule from the docstring of its judge.

    The first paragraph is the sentence; the others follow `Measure:`, `Source:`, `Hint:`, `Why:` and `Error if:`.
    """
    sentence, _, entries = inspect.cleandoc(judge.__doc__ or "").partition("\n\n")
    parts = re.split(r"^(Measure|Source|Hint|Why|Error if): ", entries, flags=re.MULTILINE)[1:]
    if sentence.split(" ")[0].istitle():  # unlike NaN
        sentence = sentence[0].lower() + sentence[1:]
    texts = dict.fromkeys(("measure", "source", "hint", "why", "error_if"), "")
    texts |= {"sentence": sentence.removesuffix("."), **dict(zip(parts[::2], parts[1::2], strict=True))}
    spaced = re.compile(r"\s*\n\s*")
    return {key.lower().replace(" ", "_"): spaced.sub(" ", text.strip()) for key, text in texts.items()}


def rules_in(kind: type[AnyRule], *modules: ModuleType) -> tuple[AnyRule, ...]:
    """Return the rules of some modules, by code."""
    every = (one for module in modules for one in vars(module).values())
    by_code = {one.code: one for one in every if isinstance(one, kind)}
    return tuple(by_code[code] for code in sorted(by_code))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(ListedRule):
    """A named check of a model."""

    needs: frozenset[str]  # the fields of `Evidence` it requires
    judge: Callable[["Evidence", Any], Iterable[Sighting]]  # yields every place where the rule is broken
    # Format of the threshold: `number`, `count` (25M), `bytes` (500MB), `shape` (1,1000)
    kind: str = "number"
    most: float = math.inf  # the largest possible value: 1 for a fraction
    wants: frozenset[str] = frozenset()  # optional fields of `Evidence`
    # Codes of rules whose error in a layer explains one of this rule there
    yields_to: tuple[str, ...] = ()
    # Codes of rules whose error in any layer explains an error of this one
    follows: tuple[str, ...] = ()
    # Returns why it cannot be judged here, None if it can
    excuse: Callable[["Evidence", Any], str | None] = always


Threshold = float | str | None
Judge = Callable[["Evidence", Any], Iterable[Sighting]]


def rule(
    code: str, name: str, severity: str, threshold: Threshold, **options: Any
) -> Callable[[Judge], Rule]:
    """Make a rule of the function that judges by it; see `texts_of` for its docstring."""

    def decorate(judge: Judge) -> Rule:
        texts: dict[str, Any] = {**texts_of(judge), **options}
        which = WARNING_OR_ERROR if texts["error_if"] else severity
        return Rule(code=code, name=name, severity=which, threshold=threshold, judge=judge, **texts)

    return decorate


def needs_of(rules: Iterable[Rule], thresholds: Mapping[str, Threshold]) -> frozenset[str]:
    """Return the fields of `Evidence` to gather; budgets that are not set need none."""
    live = [rule for rule in rules if thresholds.get(rule.code, rule.threshold) is not None]
    return frozenset().union(*(rule.needs | rule.wants for rule in live))


def judge(
    rules: Sequence[Rule], thresholds: Mapping[str, Threshold], evidence: "Evidence"
) -> tuple[tuple[Finding, ...], tuple[RuleInfo, ...]]:
    """Return the findings, errors first, and the rules with their outcomes."""
    findings: list[Finding] = []
    infos: list[RuleInfo] = []
    for rule in rules:
        threshold = thresholds.get(rule.code, rule.threshold)
        info = rule.info(threshold)
        reason = _why_not(rule, threshold, evidence)
        if reason is not None:
            infos.append(replace(info, judged=False, reason=reason))
            continue
        places = [*rule.judge(evidence, threshold)]
        infos.append(replace(info, measured=next((one.message for one in places if one.is_met), None)))
        findings += [
            Finding(
                code=rule.code,
                rule=rule.name,
                severity=place.severity or rule.level,
                layer=place.layer,
                value=place.value if place.value is not None and math.isfinite(place.value) else None,
                threshold=None if place.is_rest else threshold,
                message=place.message,
                hint=rule.hint.replace("LAYER", shlex.quote(place.layer or "LAYER")),
            )
            for place in places
            if not place.is_met
        ]
    by_code = {rule.code: rule for rule in rules}
    errors = [one for one in findings if one.severity == ERROR]

    def causes(one: Finding) -> list[str]:
        rule, layer = by_code[one.code], one.layer and one.layer.partition("#")[0]
        anywhere = rule.follows if one in errors else ()
        return [
            other.code
            for other in errors
            if other.code in anywhere or (other.code in rule.yields_to and other.layer == layer)
        ]

    explained = {one.code: causes(one) for one in findings if causes(one)}
    findings = [one for one in findings if not causes(one)]
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    for code in explained.keys() - {one.code for one in findings}:
        reason = f"already explained by {some(dict.fromkeys(explained[code]))}"
        infos = [replace(one, judged=False, reason=reason) if one.code == code else one for one in infos]
    return tuple(findings), tuple(infos)


def _why_not(rule: Rule, threshold: Threshold, evidence: "Evidence") -> str | None:
    if threshold is None:
        return "no budget is set"
    for field in sorted(rule.needs):
        if field in evidence.missing:
            return evidence.missing[field]
    return rule.excuse(evidence, threshold)


def verdict_of(
    findings: Iterable[Finding], rules: Sequence[RuleInfo], fail_on: str, given: InputInfo | None
) -> str:
    """Return the verdict; a check that judged nothing, not a budget that was set, or read less than half of its
    images does not pass.

    Args:
        given: the judged images, or the inputs of the model.
    """
    if any(is_as_severe(finding.severity, fail_on) for finding in findings if not finding.known):
        return FAILED
    is_blind = given is not None and 2 * given.n_broken > given.n_files
    is_whole = any(rule.judged for rule in rules) and not is_blind and not any(map(_is_unmet, rules))
    return PASSED if is_whole else NOT_JUDGED


def _is_unmet(rule: RuleInfo) -> bool:
    """Tell whether this is a budget that was set and could not be judged."""
    return rule.code.startswith(_BUDGETS) and rule.threshold is not None and not rule.judged


def unjudged_error(record: "CheckRecord") -> CannotRunError | None:
    """Return the error, with the record, of a check that judged nothing; None for any other."""
    if record.verdict != NOT_JUDGED:
        return None
    info = record.run.input
    if info is not None and 2 * info.n_broken > info.n_files:
        message = (
            f"{info.n_broken:,} of {info.n_files:,} images could not be read, so the model was not judged"
        )
        error = CannotRunError(message, f"ls -l {shlex.quote(info.broken[0].names[0])}")
    elif (unmet := next(filter(_is_unmet, record.rules), None)) is not None:
        labels = (reason := unmet.reason or "").partition("--labels ")[2]
        hint = "--mode eval" if "train mode" in reason else f"leave out --{unmet.name}"
        hint = f"--labels {labels}" if labels else hint
        error = CannotRunError(f"{unmet.code} was not judged: {unmet.reason}", hint)
    else:
        n = len(record.rules)
        reasons = "; ".join(dict.fromkeys(rule.reason for rule in record.rules if rule.reason))
        message = f"none of the {n} rules was judged" if n > 1 else f"{record.rules[0].code} was not judged"
        first = "MS1   judges the weights" if record.dataset is None else "MS801   names the images"
        error = CannotRunError(f"{message}: {reasons}", f"--select {first}")
    error.record = record
    return error
