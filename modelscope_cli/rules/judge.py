"""From evidence to findings."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from modelscope_cli.errors import CannotRunError
from modelscope_cli.records.check import (
    FAILED,
    NOT_JUDGED,
    PASSED,
    SEVERITIES,
    CheckRecord,
    Finding,
    RuleInfo,
    is_as_severe,
)
from modelscope_cli.records.check_evidence import Evidence
from modelscope_cli.records.run import InputInfo
from modelscope_cli.rules.rule import Rule

Threshold = float | str | None


def needs_of(rules: Iterable[Rule], thresholds: Mapping[str, Threshold]) -> frozenset[str]:
    """Return the fields of `Evidence` that have to be gathered; a budget nobody has set needs nothing."""
    live = [rule for rule in rules if thresholds.get(rule.code, rule.threshold) is not None]
    return frozenset().union(*(rule.needs | rule.wants for rule in live))


def judge(
    rules: Sequence[Rule], thresholds: Mapping[str, Threshold], evidence: Evidence
) -> tuple[tuple[Finding, ...], tuple[RuleInfo, ...]]:
    """Return the findings, errors first, and the rules with what became of each."""
    findings: list[Finding] = []
    infos: list[RuleInfo] = []
    for rule in rules:
        threshold = thresholds.get(rule.code, rule.threshold)
        info = rule.info(threshold)
        reason = _why_not(rule, threshold, evidence)
        if reason is not None:
            infos.append(replace(info, judged=False, reason=reason))
            continue
        infos.append(info)
        explained = {
            finding.layer
            for finding in findings
            if finding.code in rule.yields_to and is_as_severe(finding.severity, rule.severity)
        }
        findings += [
            Finding(
                code=rule.code,
                rule=rule.name,
                severity=seen.severity or rule.severity,
                layer=seen.layer,
                value=seen.value if seen.value is not None and math.isfinite(seen.value) else None,
                threshold=None if seen.is_rest else threshold,
                message=seen.message,
                hint=rule.hint,
            )
            for seen in rule.judge(evidence, threshold)
            if _layer(seen.layer) not in explained
        ]
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    return tuple(findings), tuple(infos)


def _layer(place: str | None) -> str | None:
    """Return the layer of a call: `relu` of `relu#1`."""
    return place.partition("#")[0] if place else None


def _why_not(rule: Rule, threshold: Threshold, evidence: Evidence) -> str | None:
    if threshold is None:
        return "no budget is set"
    for field in sorted(rule.needs):
        if field in evidence.missing:
            return evidence.missing[field]
    return rule.excuse(evidence, threshold)


def verdict_of(
    findings: Iterable[Finding], rules: Iterable[RuleInfo], fail_on: str, given: InputInfo | None
) -> str:
    """Return the verdict; a check that judged nothing, or read less than half of its images, does not pass.

    Args:
        given: what was judged, or what the model ran on.
    """
    if any(is_as_severe(finding.severity, fail_on) for finding in findings if not finding.known):
        return FAILED
    is_blind = given is not None and 2 * given.n_broken > given.n_files
    return PASSED if any(rule.judged for rule in rules) and not is_blind else NOT_JUDGED


def unjudged_error(record: CheckRecord) -> CannotRunError | None:
    """Return the error of a check that judged nothing, which the record goes with; None of any other."""
    if record.verdict != NOT_JUDGED:
        return None
    given = record.run.input
    if given is not None and 2 * given.n_broken > given.n_files:
        message = (
            f"{given.n_broken:,} of {given.n_files:,} images could not be read, so the model was not judged"
        )
        error = CannotRunError(message, f"ls -l {shlex.quote(given.broken[0].names[0])}")
    else:
        n = len(record.rules)
        reasons = "; ".join(dict.fromkeys(rule.reason for rule in record.rules if rule.reason))
        message = f"none of the {n} rules was judged" if n > 1 else f"{record.rules[0].code} was not judged"
        first = "MS1   judges the weights" if record.dataset is None else "MS801   names the images"
        error = CannotRunError(f"{message}: {reasons}", f"--select {first}")
    error.record = record
    return error
