"""The page of `check`."""

from dataclasses import replace

from modelscope_cli.records.check import CheckRecord
from modelscope_cli.records.findings import RuleInfo
from modelscope_cli.records.naming import counted
from modelscope_cli.report.check.table import check_sheet
from modelscope_cli.report.listings import threshold_of
from modelscope_cli.report.page.common import finding
from modelscope_cli.report.page.html import NOTHING, Html, Section, element, facts, joined
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.page.tables import sheet_section
from modelscope_cli.report.sheet import Column, Sheet


def sections(record: CheckRecord, embedded: EmbeddedImages) -> list[Section]:
    """Return the verdict, its findings, and every rule with its outcome, those that passed last and folded."""
    cards = []
    for one in record.findings:
        line = f"{one.made_at.file}:{one.made_at.line}" if one.made_at is not None else ""
        cards.append(finding(one, where=[line, "in the baseline" if one.known else ""]))
    findings = [Section("verdict", "Verdict", element("ul", *cards, class_="findings"))] if cards else []
    inputs = [
        pair
        for pair in check_sheet(record).facts
        if pair[0].startswith(("accuracy", "input", "sizes", "modes"))
    ]
    return [*findings, Section("rules", "Rules", joined([facts(inputs), _rules(record)]))]


def _rules(record: CheckRecord) -> Html:
    by_code = {
        rule.code: sum(one.code == rule.code and not one.known for one in record.findings)
        for rule in record.rules
    }

    def result(rule: RuleInfo) -> str:
        if not rule.judged:
            return f"not judged: {rule.reason}"
        n = by_code[rule.code]
        return counted(n, "finding") if n else "passed"

    columns = (
        Column("code", "code", lambda rule: rule.code, is_number=False),
        Column("name", "rule", lambda rule: rule.name, is_number=False),
        Column("severity", "severity", lambda rule: rule.severity, is_number=False),
        Column("result", "result", result, is_number=False, wraps=True),
        Column("threshold", "threshold", lambda rule: rule.threshold, threshold_of),
        Column("measure", "of", lambda rule: rule.measure, is_number=False, wraps=True),
        Column("source", "source", lambda rule: rule.source, is_number=False, wraps=True),
    )
    passed = tuple(rule for rule in record.rules if rule.judged and not by_code[rule.code])
    others = tuple(rule for rule in record.rules if rule not in passed)
    sheet = Sheet(
        "", columns, others, is_bad=lambda rule: by_code[rule.code] > 0, is_dim=lambda rule: not rule.judged
    )
    caption = "with their thresholds and sources"
    shown = (
        sheet_section(sheet, "rule-rows", f"Rules with findings, and rules not judged, {caption}.")
        if others
        else NOTHING
    )
    title = element("summary", f"{counted(len(passed), 'rule')} passed")
    table = sheet_section(replace(sheet, rows=passed), "passed-rows", f"Rules that passed, {caption}.")
    return joined([shown, element("details", title, table) if passed else NOTHING])
