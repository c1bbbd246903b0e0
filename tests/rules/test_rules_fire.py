"""Every rule fires on a network injured in its way, alone; none fires on the healthy one."""

import importlib.util
from pathlib import Path

import pytest

from modelscope_cli.rules.registry import RULES, find_rule

_spec = importlib.util.spec_from_file_location("sick_variants", Path(__file__).with_name("sick.py"))
_sick = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_sick)
VARIANTS = _sick.VARIANTS
IDS = [f"{code}-{injure.__name__}" for code, injure, *_ in VARIANTS]
BUDGETS_MET = {"MS501": 100_000, "MS502": 1e9, "MS503": 50e6, "MS504": "1,10", "MS505": 200e6, "MS506": 0.9}


def test_there_is_a_sick_variant_for_every_rule():
    # Not of a network: MS0xx are tests of files, MS103 of the input.
    of_models = [rule.code for rule in RULES if not rule.code.startswith("MS0") and rule.code != "MS103"]
    assert of_models == sorted({code for code, *_ in VARIANTS})


def test_nothing_is_found_in_the_healthy_network(healthy, examine, findings):
    evidence = examine(healthy)
    assert not evidence.missing
    assert findings(evidence, **BUDGETS_MET) == ()


@pytest.mark.parametrize(("code", "injure", "layer", "thresholds"), VARIANTS, ids=IDS)
def test_a_sick_variant_breaks_exactly_its_rule(healthy, examine, findings, code, injure, layer, thresholds):
    evidence = examine(healthy, injure(healthy.module))
    found = findings(evidence, **thresholds)
    assert {finding.code for finding in found} == {code}
    assert found[0].severity in find_rule(code, "").severity.split(" or ")
    assert found[0].layer == layer
    # The threshold decides: just beyond what was found, nothing is.
    values = [finding.value for finding in found]
    if code == "MS504":
        beyond = "1,10"
    elif code in ("MS302", "MS506"):
        beyond = min(values)
    elif code == "MS604":  # fires at its threshold, 0
        beyond = -1
    else:
        beyond = max(values) + (code == "MS601")
    assert code not in {finding.code for finding in findings(evidence, **{code: beyond})}
