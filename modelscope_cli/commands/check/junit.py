"""Findings as JUnit XML, which every CI reads: one test case a rule."""

import re
from xml.etree import ElementTree as ET

from modelscope_cli.commands.check.table import sentence
from modelscope_cli.plain_text import plain, plain_lines
from modelscope_cli.records.check import NOT_JUDGED, CheckRecord, Finding, RuleInfo, is_as_severe

# What XML 1.0 has no place for, section 2.2, and `plain` leaves.
_FORBIDDEN = re.compile("[\ufffe\uffff]")


def render_junit(record: CheckRecord) -> str:
    """Return a document in which a rule fails where it has a new finding at or above `--fail-on`, passes with
    the others written to its output, and is skipped where it could not be judged; a check that judged nothing is
    an error."""
    suite = ET.Element("testsuite", name="modelscope check", time=f"{record.run.elapsed_ms / 1000:.3f}")
    n_failures = n_skipped = 0
    for rule in record.rules:
        case = ET.SubElement(
            suite, "testcase", classname=_clean(record.run.model.name), name=f"{rule.code} {rule.name}"
        )
        found = [finding for finding in record.findings if finding.code == rule.code]
        new = [finding for finding in found if not finding.known]
        failing = [finding for finding in new if is_as_severe(finding.severity, record.fail_on)]
        if not rule.judged:
            ET.SubElement(case, "skipped", message=_clean(rule.reason or ""))
            n_skipped += 1
        elif failing:
            n = len(failing)
            message = _line(failing[0]) if n == 1 else f"{n} findings: {rule.sentence}"
            failure = ET.SubElement(case, "failure", type=rule.severity, message=_clean(message))
            failure.text = _lines(failing, rule)
            n_failures += 1
        elif found:
            ET.SubElement(case, "system-out").text = _lines(found, rule)
    is_unjudged = record.verdict == NOT_JUDGED
    if is_unjudged:
        case = ET.SubElement(suite, "testcase", classname=_clean(record.run.model.name), name="verdict")
        ET.SubElement(case, "error", message=_clean(sentence(record)))
    suite.attrib |= {"tests": str(len(suite)), "failures": str(n_failures), "errors": str(int(is_unjudged))}
    suite.set("skipped", str(n_skipped))
    ET.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suite, encoding="unicode") + "\n"


def _line(finding: Finding) -> str:
    whole = "the images" if finding.code.startswith("MS8") else "the model"
    return plain(f"{finding.layer or whole}: {finding.message}") + (" (known)" if finding.known else "")


def _lines(findings: list[Finding], rule: RuleInfo) -> str:
    return _clean("\n".join([*map(_line, findings), f"hint: {rule.hint}"]))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\ufffd", plain_lines(text))
