"""Findings as other programs read them: nothing in a layer's name or message breaks out of its place."""

import json
from dataclasses import replace
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st
from sarif_pydantic import Sarif

from modelscope_cli.plain_text import plain
from modelscope_cli.records.check import CheckRecord
from modelscope_cli.records.findings import Finding
from modelscope_cli.records.run import ModelInfo, Notice, Run, WeightsInfo
from modelscope_cli.report.check.table import check_sheet, review
from modelscope_cli.report.ci import CI_FORMATS, render_junit
from modelscope_cli.report.formats import render_brief, render_markdown, render_tsv
from modelscope_cli.report.page.images import EmbeddedImages
from modelscope_cli.report.registry import sheet_of, view_of
from modelscope_cli.rules.registry import RULES, list_rules

RULE = RULES[0]
TEXT = st.text(max_size=30)


def record(layer: str, message: str) -> CheckRecord:
    model = ModelInfo("import", message, "Net", WeightsInfo("none", "random", "seeded random"))
    run = Run("check", (), model, None, "cpu", "float32", 0, {})
    found = Finding(RULE.code, f"{RULE.name}{layer}", "error", layer, 1.0, 0.0, message, "hint")
    return CheckRecord(run, (found,), (RULE.info(0),), False, "error", "eval", 0)


def rendered(checked: CheckRecord, format: str) -> str:
    return CI_FORMATS[format].render(review(checked))


@given(TEXT, TEXT)
def test_a_github_command_is_one_line_and_reads_back(layer, message):
    line, verdict = rendered(record(layer, message), "github").split("\n")[:-1]
    assert verdict == "modelscope check: failed with 1 error"
    assert "\r" not in line
    properties, _, data = line.removeprefix("::error title=").partition("::")
    assert not set(properties) & {":", ",", "\r", "\n"}
    for code, mark in (("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        data = data.replace(code, mark)
    assert data == plain((f"{layer}: " if layer else "") + f"{message} (hint)")


@given(TEXT, TEXT)
def test_junit_is_xml_whatever_a_layer_is_called(layer, message):
    suite = ET.fromstring(render_junit(review(record(layer, message))).encode())
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["1", "1", "0"]


@given(TEXT, TEXT)
def test_sarif_is_valid_and_says_what_the_finding_says(layer, message):
    log = Sarif.model_validate_json(rendered(record(layer, message), "sarif"))
    (run,) = log.runs
    (result,) = run.results
    assert run.tool.driver.rules[result.rule_index].id == result.rule_id == RULE.code
    assert result.message.text == plain((f"{layer}: " if layer else "") + f"{message} (hint)")


@given(TEXT, TEXT)
def test_gitlab_has_what_its_report_requires(layer, message):
    (entry,) = json.loads(rendered(record(layer, message), "gitlab"))
    assert set(entry) == {"description", "check_name", "fingerprint", "severity", "location"}
    assert entry["severity"] == "major"
    assert entry["location"]["lines"] == {"begin": 1}
    assert entry["location"]["path"] == message


def test_a_finding_is_recognised_though_its_numbers_and_lines_move():
    def identities(*changes):
        one = record("relu", "dead").findings[0]
        findings = tuple(replace(one, **change) for change in changes)
        text = rendered(replace(record("relu", "dead"), findings=findings), "gitlab")
        return [entry["fingerprint"] for entry in json.loads(text)]

    moved = {"message": "9 of 16", "value": 0.5, "hint": "other"}
    assert identities({}) == identities(moved)
    assert len(set(identities({}, moved, {"layer": "relu2"}))) == 3  # the same place twice is two findings


def test_known_findings_are_neither_commands_nor_failures():
    known = record("relu", "dead")
    known = replace(known, findings=(replace(known.findings[0], known=True),), passed=True)
    assert rendered(known, "github") == "modelscope check: passed: no new findings (1 known)\n"
    assert ET.fromstring(render_junit(review(known)).encode()).get("failures") == "0"
    (result,) = json.loads(rendered(known, "sarif"))["runs"][0]["results"]
    assert [one["kind"] for one in result["suppressions"]] == ["external"]
    assert json.loads(rendered(known, "gitlab")) == []


def test_junit_says_how_severe_the_findings_are_not_the_rule():
    one = replace(record("relu", "dead"), fail_on="warning")
    warning, error = (replace(one.findings[0], severity=severity) for severity in ("warning", "error"))
    for findings, severity in (((warning,), "warning"), ((error,), "error"), ((warning, error), "error")):
        suite = ET.fromstring(render_junit(review(replace(one, findings=findings))).encode())
        assert [failure.get("type") for failure in suite.iter("failure")] == [severity]


def test_a_finding_outside_the_repository_is_in_the_file_as_typed(tmp_path, monkeypatch):
    (tmp_path / "net.py").touch()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    one = record("relu", "../net.py:Net")
    assert json.loads(rendered(one, "gitlab"))[0]["location"]["path"] == "../net.py"
    assert rendered(one, "github").startswith("::error file=../net.py,line=1,")
    (tmp_path / "w.pt").touch()
    weights = WeightsInfo("../w.pt", "w.pt", "checkpoint")
    one = replace(one, run=replace(one.run, model=replace(one.run.model, weights=weights)))
    (result,) = json.loads(rendered(one, "sarif"))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"] == {"uri": "../w.pt"}


def test_a_warning_that_a_rule_repeats_is_annotated_once():
    notice = Notice("nonfinite_weights", "NaN in the weights")
    one = record("conv", "1 NaN")
    one = replace(one, run=replace(one.run, warnings=(notice,)))
    assert "::warning" in rendered(one, "github")
    one = replace(one, findings=(replace(one.findings[0], code="MS101"),))
    assert "::warning" not in rendered(one, "github")


def test_the_comment_of_a_hint_is_set_apart_in_every_format():
    """It would be taken for arguments of the command: tables and pages reduce a gap to one blank."""
    checked = record("conv", "message")
    hint = "modelscope summary MODEL --sort params   shows the largest first"
    checked = replace(checked, findings=(replace(checked.findings[0], hint=hint),))
    sheet = check_sheet(checked)
    page = view_of(checked).sections(checked, EmbeddedImages(None))
    texts = [
        *(rendered(checked, one) for one in ("github", "sarif", "gitlab")),
        render_junit(review(checked)),
    ]
    texts += [render_tsv(sheet), render_markdown(sheet), render_brief(sheet), str(page)]
    for text in texts:
        assert " ".join(text.split()).count("params # shows") == 1, text


def test_no_text_of_a_rule_looks_like_a_formula_to_a_spreadsheet():
    assert "\t'" not in render_tsv(sheet_of(list_rules()))
