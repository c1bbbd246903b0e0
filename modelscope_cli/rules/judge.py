"""From evidence to findings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from modelscope_cli.records.check import SEVERITIES, Finding, RuleInfo, is_as_severe
from modelscope_cli.records.evidence import Evidence
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
        explained = {finding.layer for finding in findings if finding.code in rule.yields_to}
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


def fails(findings: Iterable[Finding], fail_on: str) -> bool:
    """Return whether there is a new finding at or above a severity."""
    return any(is_as_severe(finding.severity, fail_on) for finding in findings if not finding.known)
