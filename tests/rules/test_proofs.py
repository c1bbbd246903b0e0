"""What trials proved or excluded, beside what the rules found."""

from dataclasses import replace

import pytest
from rules.test_training_rules import SICK
from trainings import N, certain, codes, criterion, model, parameter, training, with_weight

from modelscope_cli.records.findings import ERROR
from modelscope_cli.records.trials import DATA, GRADIENT, MODEL, NO, Fix, TrialRow, Trials
from modelscope_cli.records.watch import FAULT
from modelscope_cli.rules.training import _EXPLAINS_NOTHING, RULES, judge_training
from modelscope_cli.rules.training.rule_types import Link
from modelscope_cli.rules.training.trial import REFUTABLE
from modelscope_cli.watching.trials.catalogue import TRIALS, Trial

FIX = Fix(
    trial="usual settings",
    sentence="proved: with eps=1e-08, the loss falls to 0.4 in 60 steps (2.3 without it)",
    write="eps=1e-08",
    source="train.py:7",
    codes=(),
    steps=60,
    loss_last=0.4,
    loss_without=2.3,
    metric=None,
    metric_without=None,
)
TRIED = {
    "MS790": Trials(fix=FIX, outcome=FIX.sentence),
    "MS791": Trials(outcome="the gradient of act is -1 times the slope of its output", examined=GRADIENT),
    "MS792": Trials(outcome="look at the data and the labels", examined=DATA),
    "MS793": Trials(outcome="look at the model and its loss", examined=MODEL),
}


@pytest.mark.parametrize("code", TRIED)
def test_what_trials_found_stands_first_and_symptoms_follow(code: str) -> None:
    record = training(failing=True)
    judgement = judge_training(record, record.facts, TRIED[code])
    first, *others = judgement.findings
    assert (first.code, first.severity, first.message) == (code, ERROR, TRIED[code].outcome)
    assert [one.follows for one in others] == [code]
    assert others[0].code == "MS735"
    assert judgement.verdict == FAULT


def test_a_finding_whose_cause_was_proved_has_the_proof_and_refuted_ones_are_below() -> None:
    still = with_weight(update_ratio=(1e-9,) * N)
    assert codes(still)[0] == "MS710"
    named = replace(FIX, trial="rate x 10", codes=("MS710",))
    first, *_ = judge_training(still, still.facts, Trials(fix=named)).findings
    assert (first.code, first.proved, first.hint, first.place) == ("MS710", named, "eps=1e-08", "train.py:7")
    assert first.message.startswith(FIX.sentence)
    first, second, *_ = judge_training(still, still.facts, Trials(fix=FIX, refuted=("MS710",))).findings
    assert (first.code, second.code, second.follows) == ("MS790", "MS710", "MS790")


# What a trial takes away by its own change, so that its proof is of that rule; not NaN, which follows from others
CURED = [
    (one, code)
    for one in TRIALS
    for code in one.codes.split()
    if not one.is_general and code not in ("MS701", "MS702", "MS703")
]


@pytest.mark.parametrize(("trial", "code"), CURED, ids=lambda one: getattr(one, "name", one))
def test_a_proof_and_the_rule_whose_cure_it_is_are_one_finding(trial: Trial, code: str) -> None:
    record, _, _ = SICK[code]
    proof = replace(FIX, trial=trial.name, codes=tuple(trial.codes.split()))
    findings = judge_training(record, record.facts, Trials(fix=proof)).findings
    assert (findings[0].code, findings[0].proved) == (code, proof)
    assert [one.code for one in findings if one.follows is None] == [code]


def test_two_rules_that_one_change_cures_are_one_cause() -> None:
    modes = model(evaluation_since=20, frozen_modes=("Dropout",), evaluated=(5, 0), loose_modes=("Dropout",))
    record = training(models=(modes,))
    findings = judge_training(record, record.facts).findings
    assert [(one.code, one.follows) for one in findings] == [("MS743", None), ("MS718", None)]
    proof = replace(FIX, trial="usual modes", codes=("MS718", "MS743"))
    findings = judge_training(record, record.facts, Trials(fix=proof)).findings
    assert [(one.code, one.follows) for one in findings] == [("MS743", None), ("MS718", "MS743")]


@pytest.mark.parametrize("code", ["MS710", "MS744", "MS739"])
def test_what_was_tried_in_vain_is_said_and_not_advised_again(code: str) -> None:
    record, _, _ = SICK[code]
    (plain,) = (one for one in judge_training(record, record.facts).findings if one.code == code)
    tried = Trials(outcome="no time is left", in_vain={code: ["a learning rate of 1", "AdamW"]})
    (one,) = (one for one in judge_training(record, record.facts, tried).findings if one.code == code)
    assert "a learning rate of 1 and AdamW made it no better" in one.hint
    assert (plain.hint in one.hint) is (code not in REFUTABLE)  # what the script does wrong in any case is
    proof = replace(FIX, codes=(code,))
    (one,) = (
        one
        for one in judge_training(record, record.facts, replace(tried, fix=proof)).findings
        if one.code == code
    )
    assert one.hint == FIX.write


@pytest.mark.parametrize("code", ["MS712", "MS720", "MS738", "MS713", "MS718"])
@pytest.mark.parametrize(("unchanged", "cured"), [(1.0, 1.0), (0.97, 0.99), (None, None)])
def test_the_cure_of_what_a_script_does_wrong_is_not_doubted_in_a_training_that_learns(
    code: str, unchanged: float | None, cured: float | None
) -> None:
    record, _, _ = SICK[code]
    rows = (
        TrialRow("rerun", "unchanged", N, 2.3, 0.1, unchanged, None),
        TrialRow("cure", "the cure", N, 2.3, 0.2, cured, NO),
        TrialRow("another", "another change", N, 2.3, 0.2, 0.4, NO),
    )
    (plain,) = (one for one in judge_training(record, record.facts).findings if one.code == code)
    tried = Trials(rows=rows, in_vain={code: ["the cure"]})
    (one,) = (one for one in judge_training(record, record.facts, tried).findings if one.code == code)
    assert one.hint == plain.hint


def test_a_cure_after_which_a_training_still_fails_may_not_be_enough() -> None:
    record = training(failing=True, criteria=(criterion(is_probability=(True,) * N, accuracy=(0.1,) * N),))
    rows = (
        TrialRow("rerun", "unchanged", N, 2.3, 2.3, 0.1, None),
        TrialRow("cure", "the cure", N, 2.3, 2.3, 0.2, NO),
    )
    for judged in (rows, ()):
        tried = Trials(rows=judged, in_vain={"MS720": ["the cure"]})
        first, *_ = judge_training(record, record.facts, tried).findings
        assert first.code == "MS720"
        assert first.hint.endswith("; this alone may not be enough: the cure made it no better")


@pytest.mark.parametrize("code", ["MS712", "MS720"])
def test_what_a_script_shows_stays_a_cause_of_its_own(code: str) -> None:
    record, _, _ = SICK[code]
    findings = judge_training(record, record.facts, Trials(fix=FIX)).findings
    assert [one.code for one in findings if one.follows is None] == ["MS790", code]
    examined = Trials(outcome="look at the data", examined=DATA)
    assert judge_training(record, record.facts, examined).findings[0].code == code


CAUSES = {rule.code for rule in RULES if rule.link <= Link.STEP_SIZE} & SICK.keys() - {
    "MS709",
    *_EXPLAINS_NOTHING,
}


@pytest.mark.parametrize("code", sorted(CAUSES))
def test_a_change_of_the_recipe_comes_after_a_cause_that_no_trial_has_excluded(code: str) -> None:
    record, _, _ = SICK[code]
    general = Trials(fix=replace(FIX, trial="rate / 10", codes=("MS709",), is_general=True))
    before = [(one.code, one.follows) for one in judge_training(record, record.facts).findings]
    after = [(one.code, one.follows) for one in judge_training(record, record.facts, general).findings]
    assert before[0] == (code, None)
    assert after == [*before, ("MS790", None)]
    tried = judge_training(record, record.facts, replace(general, refuted=(code,))).findings
    assert [one.code for one in tried if one.follows is None] == ["MS790", code]


def test_an_examination_says_less_than_a_rule_that_no_trial_has_excluded() -> None:
    record, _, _ = SICK["MS739"]
    examined = Trials(outcome="look at the model", examined=MODEL)
    assert judge_training(record, record.facts, examined).findings[0].code == "MS739"


def test_every_rule_has_a_course_and_codes_and_names_are_there_once() -> None:
    assert [rule.code for rule in RULES] == sorted({*SICK, *TRIED})
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_what_two_calls_of_a_criterion_get_is_said_once() -> None:
    record = SICK["MS720"][0]
    twice = replace(record, facts=replace(record.facts, criteria=record.facts.criteria * 2))
    assert [one.code for one in judge_training(twice, twice.facts).findings].count("MS720") == 1


def test_a_teacher_beside_a_student_is_advised_as_one() -> None:
    teacher = model(evaluation_since=0, frozen_modes=("Dropout",))
    own = parameter("a.weight", model="Student", facts=certain())
    still = parameter(facts=certain(has_gradient=False, has_changed=False))
    for weight, is_found in ((parameter(), True), (still, False)):
        record = training(parameters=(weight, own), models=(teacher, model("Student")))
        hints = {one.code: one.hint for one in judge_training(record, record.facts).findings}
        advice = "if it is a teacher, call it under torch.no_grad()"
        assert (advice in hints.get("MS718", "")) == is_found == ("MS718" in hints)


def test_a_line_of_the_script_is_named_where_it_is_known() -> None:
    for code, place in (("MS713", "a.py:5"), ("MS720", "a.py:9"), ("MS718", "a.py:8"), ("MS702", "a.py:8")):
        record = SICK[code][0]
        facts = replace(record.facts, models=record.facts.models or (model(),))
        assert judge_training(record, facts).findings[0].place == place
