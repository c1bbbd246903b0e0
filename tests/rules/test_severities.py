"""The severity of a finding is one that its rule declares, wherever that is told."""

import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from trainings import FLAT, loss, training

from modelscope_cli.records.findings import ERROR, WARNING, WARNING_OR_ERROR
from modelscope_cli.rules import training as of_trainings
from modelscope_cli.rules.registry import EVERY
from modelscope_cli.rules.rule import ListedRule
from modelscope_cli.rules.training.rule_types import TrainingRule, TrainingSighting
from modelscope_cli.watching.trials.catalogue import TRIALS

TRAINED = [rule for rule in EVERY if isinstance(rule, TrainingRule)]


def source(judge: Callable) -> str:
    """Return the code of a judge and of the functions of its module whose sightings it passes on."""
    module, text = sys.modules[judge.__module__], inspect.getsource(judge).partition('"""\n')[2]
    called = (getattr(module, name, None) for name in set(re.findall(r"(?<!any\()\b(\w+)\(", text)))
    own = (one for one in called if inspect.isfunction(one) and one.__module__ == judge.__module__)
    return text + "".join(map(inspect.getsource, own))


@pytest.mark.parametrize("rule", EVERY, ids=[rule.code for rule in EVERY])
def test_a_rule_sets_a_severity_only_where_it_says_when(rule: ListedRule) -> None:
    assert rule.severity in (WARNING, ERROR, WARNING_OR_ERROR)
    assert bool(rule.error_if) == (rule.severity == WARNING_OR_ERROR)
    if re.search(r"(?<!== )\b(ERROR|WARNING)\b", source(rule.judge)):
        assert rule.severity == WARNING_OR_ERROR


@pytest.mark.parametrize(
    "cause", [rule for rule in TRAINED if rule.severity != ERROR], ids=lambda one: one.code
)
def test_a_cause_of_an_error_is_one_only_where_its_rule_says_so(cause: TrainingRule, monkeypatch) -> None:
    def sighted(case, threshold):
        yield TrainingSighting(None, 0, None, "seen")

    record = training(loss=(loss(FLAT),))
    for symptom in (rule for rule in TRAINED if rule.code in ("MS704", "MS735")):
        rules = [replace(rule, judge=sighted) for rule in (cause, symptom)]
        monkeypatch.setattr(of_trainings, "RULES", rules)
        found = {one.code: one.severity for one in of_trainings.judge_training(record, record.facts).findings}
        assert found[cause.code] in cause.severity.split(" or ")


def test_what_a_trial_may_prove_to_cause_errors_is_not_declared_a_warning() -> None:
    codes = {code for one in TRIALS for code in one.codes.split()}
    assert not [rule.code for rule in TRAINED if rule.severity == WARNING and rule.code in codes]
