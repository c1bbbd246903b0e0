"""`check --list` and `help RULE`: what there is, and that every rule says where it comes from."""

import json
import re

import pytest

from modelscope_cli.records.findings import WARNING_OR_ERROR
from modelscope_cli.report.ci import CI_FORMATS, Review
from modelscope_cli.rules import training
from modelscope_cli.rules.registry import EVERY, EVERY_RULE, list_rules

CODES = sorted(rule.code for rule in (*EVERY_RULE, *training.RULES))


def test_every_rule_is_listed_with_what_it_needs_to_be_believed(run):
    document = run("rules --json").json
    assert document["schema"] == "modelscope/rules/1"
    assert [rule["code"] for rule in document["rules"]] == CODES
    for rule in document["rules"]:
        assert re.fullmatch(r"MS[0-8]\d\d", rule["code"])
        assert all(rule[key] for key in ("name", "sentence", "measure", "source", "hint"))
        assert (rule["threshold"] is None) == (rule["code"][2] == "5")
        assert rule.keys().isdisjoint({"judged", "reason"})


def test_codes_and_names_are_unique():
    every = (*EVERY_RULE, *training.RULES)
    assert len({rule.code for rule in every}) == len({rule.name for rule in every}) == len(every)


def test_every_rule_says_why_and_how_to_silence_it():
    infos = [rule.info(rule.threshold) for rule in (*EVERY_RULE, *training.RULES)]
    assert [rule.code for rule in infos if not (rule.why and rule.silence)] == []


@pytest.mark.parametrize(("typed", "codes"), [
    ("MS705", ["MS705"]),
    ("ms705", ["MS705"]),
    ("dead-channels", ["MS202"]),
    ("MS7", [code for code in CODES if code.startswith("MS7")]),
    ("MS3 MS101", ["MS101", *(code for code in CODES if code.startswith("MS3"))]),
])  # fmt: skip
def test_some_of_them(run, typed, codes):
    assert [rule["code"] for rule in run(f"rules {typed} --json").json["rules"]] == codes
    assert run(f"rules {typed} --format tsv").column("code") == codes
    assert run(f"check --list --select {typed.replace(' ', ',')} --format tsv").column("code") == codes
    assert [rule.code for rule in list_rules(*typed.split()).rules] == codes


@pytest.mark.parametrize(("typed", "hint"), [
    ("MS7051", "modelscope check --list"),
    ("dead-chanels", "modelscope check --list dead-channels "),
    ("''", "modelscope check --list"),
])  # fmt: skip
def test_what_is_not_a_rule(run, typed, hint):
    outcome = run(f"rules {typed}", expect=2)
    assert f"error: unknown rule '{typed.strip(chr(39))}'\n" in outcome.err
    assert f"hint: {hint}" in outcome.err
    assert outcome.out == ""


def test_every_list_gives_the_same_severity(run) -> None:
    said = {rule.code: rule.severity for rule in list_rules().rules}
    assert said == {rule["code"]: rule["severity"] for rule in run("check --list --json").json["rules"]}
    (log,) = json.loads(CI_FORMATS["sarif"].render(Review("watch", "", EVERY, (), "")))["runs"]
    levels = {rule["id"]: rule["defaultConfiguration"]["level"] for rule in log["tool"]["driver"]["rules"]}
    assert {code: word.partition(" ")[0] for code, word in said.items()} == levels
    both = [code for code, word in said.items() if word == WARNING_OR_ERROR]
    texts = {rule["id"]: rule["help"]["text"] for rule in log["tool"]["driver"]["rules"]}
    assert [code for code in both if "An error if" not in texts[code]] == []
    assert "an error if" in run("help MS709").out
