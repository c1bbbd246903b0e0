"""The examples on the pages of rules: each breaks its rule, and what is written instead does not."""

import json
import shlex
from pathlib import Path

import pytest

import modelscope_cli as ms
from modelscope_cli.shell.app import run
from tools.docs import ROOT, examples, rules
from tools.docs.rules import COMMANDS

# Two ranks, or a training that is too long for an example.
WITHOUT = {"MS734", "MS746", "MS756", "MS759"}
WITHOUT |= {f"MS77{n}" for n in (1, 2, 3, 4, 6)}  # at least five seconds have to be lost


def test_every_rule_has_an_example_or_a_reason_for_having_none():
    shown = {*examples.TRAININGS, *rules.DATA_SETS, *rules.injuries(), *COMMANDS}
    assert {rule.code for rule in ms.list_rules().rules} == shown | WITHOUT
    assert not shown & WITHOUT


@pytest.mark.parametrize("code", COMMANDS)
def test_the_command_reports_its_rule(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").symlink_to(ROOT / "samples")
    script, line = COMMANDS[code]
    exec(script, {})
    run([*shlex.split(line)[1:], "--output", "check.json"])
    assert code in {one["code"] for one in json.loads(Path("check.json").read_text())["findings"]}


def codes_of(tmp_path, edits: examples.Edits) -> set[str]:
    script = tmp_path / "example.py"
    script.write_text(examples.written(edits))
    return {one.code for one in ms.watch(script).findings}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("code", examples.TRAININGS)
def test_the_training_breaks_its_rule_and_the_change_mends_it(code, tmp_path):
    wrong, right = examples.TRAININGS[code]
    assert code in codes_of(tmp_path, wrong)
    assert code not in codes_of(tmp_path, right)
    assert any(line.startswith(("+", "-")) for line in examples.change(code).splitlines())


@pytest.mark.parametrize("code", rules.DATA_SETS)
def test_the_images_break_their_rule(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(rules.IMAGES, names := {})
    before = ms.check_images("photos", set={"MS803": 0.99} if code == "MS803" else {})
    exec(rules.DATA_SETS[code], names)
    after = ms.check_images("photos", against="val" if code in ("MS804", "MS811") else ())
    assert code not in {one.code for one in before.findings}
    assert code in {one.code for one in after.findings}
