"""Findings as other programs read them: nothing in a layer's name or message breaks out of its place."""

from dataclasses import replace
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from modelscope_cli.commands.check.table import check_sheet, render_github, render_junit
from modelscope_cli.plain_text import plain
from modelscope_cli.records.check import CheckRecord, Finding
from modelscope_cli.records.run import ModelInfo, Run, WeightsInfo
from modelscope_cli.rules.registry import RULES

RULE = RULES[0]
TEXT = st.text(max_size=30)


def record(layer: str, message: str) -> CheckRecord:
    model = ModelInfo("import", message, "Net", WeightsInfo("none", "random", "seeded random"))
    run = Run("check", (), model, None, "cpu", "float32", 0, {})
    found = Finding(RULE.code, f"{RULE.name}{layer}", "error", layer, 1.0, 0.0, message, "hint")
    return CheckRecord(run, (found,), (RULE.info(0),), False, "error", "eval", 0)


@given(TEXT, TEXT)
def test_a_github_command_is_one_line_and_reads_back(layer, message):
    line, verdict = render_github(record(layer, message)).split("\n")[:-1]
    assert verdict == "modelscope check: failed with 1 error"
    assert "\r" not in line
    properties, _, data = line.removeprefix("::error title=").partition("::")
    assert not set(properties) & {":", ",", "\r", "\n"}
    for code, mark in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        data = data.replace(code, mark)
    assert data == plain((f"{layer}: " if layer else "") + f"{message} (hint)")


@given(TEXT, TEXT)
def test_junit_is_xml_whatever_a_layer_is_called(layer, message):
    suite = ET.fromstring(render_junit(record(layer, message)).encode())
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["1", "1", "0"]


def test_known_findings_are_neither_commands_nor_failures():
    known = record("relu", "dead")
    known = replace(known, findings=(replace(known.findings[0], known=True),), passed=True)
    assert render_github(known) == "modelscope check: passed: nothing new (1 known)\n"
    assert ET.fromstring(render_junit(known).encode()).get("failures") == "0"


def test_what_is_new_is_marked_and_what_is_known_is_dim():
    one = record("relu", "dead")
    rows = [
        replace(one.findings[0], severity=severity, known=known)
        for severity in ("error", "warning")
        for known in (False, True)
    ]
    sheet = check_sheet(replace(one, findings=tuple(rows)))
    assert list(map(sheet.is_bad, rows)) == [True, False, True, False]
    assert list(map(sheet.is_dim, rows)) == [False, True, False, True]
