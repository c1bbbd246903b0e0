"""`modelscope rules`: what there is, and that every rule says where it comes from."""

import re

from modelscope_cli.rules import training
from modelscope_cli.rules.registry import RULES

CODES = [rule.code for rule in (*RULES, *training.RULES)]


def test_every_rule_is_listed_with_what_it_needs_to_be_believed(run):
    document = run("rules --json").json
    assert document["schema"] == "modelscope/rules/1"
    assert [rule["code"] for rule in document["rules"]] == CODES
    for rule in document["rules"]:
        assert re.fullmatch(r"MS[0-7]\d\d", rule["code"])
        assert rule["severity"] in ("error", "warning")
        assert all(rule[key] for key in ("name", "sentence", "measure", "source", "hint"))
        assert (rule["threshold"] is None) == (rule["code"][2] == "5")
        assert rule.keys().isdisjoint({"judged", "reason"})


def test_codes_and_names_are_unique():
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


def test_tables(run):
    assert run("rules").column("code") == CODES
    markdown = run("rules --format markdown --columns code,threshold").out
    assert "| MS204 | 0.5 |" in markdown
