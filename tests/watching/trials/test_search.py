"""Which trials are run, and what follows: with measures that are made up, so that no script runs."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable

import pytest
from rules.trainings import N, entering, training
from watching.trials.test_judge import course

from modelscope_cli.records.training_facts import ScheduleFacts
from modelscope_cli.records.trials import DATA, GRADIENT, MODEL, NO, ONCE, PROVED
from modelscope_cli.records.watch import FAULT
from modelscope_cli.rules.training import judge_training
from modelscope_cli.watching.trials.search import NoMoreTrialsError, Search, steps_of
from modelscope_cli.watching.trials.survey import Survey
from modelscope_cli.watching.trials.trial import Measured

SGD = {"class": "SGD", "place": "train.py:7", "rate": 0.1, "mean": 0.1, "given": 0.1, "argument": "lr"}
SGD |= {"weight_decay": 0.0, "unusual": {}}
SURVEY = Survey(settings=(SGD,), model="train.py:12", criterion="train.py:13")
BROKEN = Measured(has_ended=True)


@pytest.fixture
def search(flat):
    """Search among trainings by name; those not named are as the first."""

    def run(
        others: dict[str, Measured | Callable[[int], Measured]],
        survey: Survey = SURVEY,
        base=None,
        record=flat,
    ):
        asked: list[tuple[str, int]] = []

        def measured(name: str, seed: int, most: int) -> Measured:
            asked.append((name, seed))
            one = others.get(name, base or course(2.3, 2.3))
            one = one(seed) if callable(one) else one
            return dataclasses.replace(one, survey=survey)

        found = Search(record, lambda several, most: [measured(*one, most) for one in several]).search()
        return found, asked

    return run


@pytest.fixture
def flat():
    """The record of a training whose loss does not fall."""
    return dataclasses.replace(training(failing=True, criteria=()), verdict=FAULT)


CLIP = dataclasses.replace(SURVEY, clips={"train.py:9": (1e-6, 2.0)})


def test_a_suspected_change_that_restores_is_the_fix_and_nothing_else_is_tried(search):
    found, asked = search({"no clipping": course(2.3, 0.4)}, CLIP)
    assert found.fix is not None
    assert (found.fix.trial, found.fix.source) == ("no clipping", "train.py:9")
    assert found.outcome == found.fix.sentence
    assert "the loss falls to 0.4 in 60 steps (2.3 without it)" in found.fix.sentence
    assert asked == [("", 0), ("no clipping", 0), ("", 1000), ("no clipping", 1000)]
    assert [row.helps for row in found.rows] == [None, PROVED, None, PROVED]


def test_what_helps_with_one_seed_only_is_not_proved(search):
    found, _ = search({"no clipping": lambda seed: course(2.3, 2.3 if seed else 0.4)}, CLIP)
    assert found.fix is None
    assert [row.helps for row in found.rows if row.name == "no clipping"] == [ONCE, NO]
    assert found.outcome is not None
    assert found.outcome.endswith("falls to 0.4 (2.3 without it); not proved: with another seed it does not")
    by_itself, _ = search(
        {"no clipping": course(2.3, 0.4), "": lambda seed: course(2.3, 0.4 if seed else 2.3)}, CLIP
    )
    assert str(by_itself.outcome).endswith("not proved: with another seed the unchanged script learns too")


def test_the_mildest_of_those_that_restore_alike_wins(search):
    one = course(2.3, 0.4)
    found, _ = search({"rate x 10": one, "fresh AdamW": one})
    assert found.fix is not None
    assert found.fix.trial == "rate x 10"


@pytest.mark.parametrize(("rate", "trial"), [(0.6, "rate x 10"), (1.5, "fresh AdamW")])
def test_a_learning_rate_that_restores_is_the_cause_although_adamw_comes_nearer(search, rate, trial):
    found, _ = search({"rate x 10": course(2.3, rate), "fresh AdamW": course(2.3, 0.1)})
    assert found.fix is not None
    assert found.fix.trial == trial
    is_rate = trial == "rate x 10"
    assert (
        "the learning rate of 0.1 is too low: with a learning rate of 1, the" in found.fix.sentence
    ) is is_rate


def test_larger_rates_are_tried_until_one_suffices(search):
    falls = {"rate x 10": 2.2, "rate x 100": 1.5, "rate x 1000": 0.6, "rate x 10000": 0.1, "fresh AdamW": 0.1}
    found, asked = search({name: course(2.3, last) for name, last in falls.items()})
    assert found.fix is not None
    assert found.fix.trial == "rate x 1000"
    assert "rate x 10000" not in dict(asked)


@pytest.mark.parametrize(("std", "size"), [(0.0, None), (0.003, "small"), (0.3, None), (70.0, "large")])
def test_logits_of_an_odd_size_are_suspected_before_the_rate(search, std, size):
    survey = dataclasses.replace(SURVEY, logits=std)
    restored, base = (dataclasses.replace(one, cost=one.loss) for one in (course(2.3, 0.3), course(2.3, 2.3)))
    found, _ = search({"usual logits": restored, "rate x 10": restored}, survey, base)
    assert found.fix is not None
    assert found.fix.trial == ("rate x 10" if size is None else "usual logits")
    assert (f"too {size}: with logits divided by {std:.2g}" in found.fix.sentence) is (size is not None)


@pytest.fixture
def dim(flat):
    """The record of a training on inputs that hardly vary, which does not learn."""
    tiny = entering(mean=(1e-4,) * N, std=(9e-4,) * N, min=(0.0,) * N, max=(3e-3,) * N, shape=(16, 3, 8, 8))
    facts = dataclasses.replace(flat.facts, inputs=(tiny, dataclasses.replace(tiny, type="Conv2d")))
    record = dataclasses.replace(flat, facts=facts)
    record = dataclasses.replace(record, findings=judge_training(record, facts).findings)
    assert record.findings[0].code == "MS727"
    return record


def test_standardised_inputs_that_do_not_help_are_tried_with_a_lower_rate(search, dim):
    found, _ = search({"standardised inputs, rate / 10": course(2.3, 0.2)}, record=dim)
    assert found.fix is not None
    assert found.fix.trial == "standardised inputs, rate / 10"
    (first, *_) = judge_training(dim, dim.facts, found).findings
    assert (first.code, first.proved) == ("MS727", found.fix)
    found, asked = search({"standardised inputs": course(2.3, 0.2)}, record=dim)
    assert found.fix is not None
    assert found.fix.trial == "standardised inputs"
    assert "standardised inputs, rate / 10" not in dict(asked)


def test_a_cause_whose_own_trial_did_not_help_is_not_said_to_be_corrected_first(search, dim):
    assert search({}, record=dim)[0].outcome == "no single change that was tried made the model learn"
    other = dataclasses.replace(dim, findings=(dataclasses.replace(dim.findings[0], code="MS734"),))
    assert search({}, record=other)[0].outcome.endswith("made the model learn; correct MS734 first")


@pytest.mark.parametrize(("shuffles", "is_tried"), [(True, False), (False, True)])
def test_samples_that_a_loader_shuffles_are_not_tried_in_random_order(search, shuffles, is_tried):
    survey = dataclasses.replace(SURVEY, loader="train.py:5", shuffles=shuffles)
    _, asked = search({}, survey)
    assert ("random order" in dict(asked)) is is_tried


def test_a_change_that_comes_much_nearer_wins_against_a_milder_one(search):
    both = dataclasses.replace(CLIP, dropout=0.95)
    found, _ = search({"no clipping": course(2.3, 1.6), "no dropout": course(2.3, 0.2)}, both)
    assert found.fix is not None
    assert found.fix.trial == "no dropout"


def test_a_higher_rate_only_makes_up_for_gradients_that_are_clipped_to_nothing(search, dim, flat):
    clipped = dataclasses.replace(dim.findings[0], code="MS741", follows=None)
    record = dataclasses.replace(flat, findings=(clipped,))
    others = {"no clipping": course(2.3, 2.1), "rate x 10": course(2.3, 0.2)}
    found, asked = search(others, CLIP, record=record)
    assert found.fix is None
    assert "rate x 10" not in dict(asked)
    assert search(others, CLIP)[0].fix is not None


def test_a_specific_change_is_the_cause_although_a_strong_optimizer_restores_too(search):
    found, asked = search({"no clipping": course(2.3, 0.8), "fresh AdamW": course(2.3, 0.1)}, CLIP)
    assert found.fix is not None
    assert found.fix.trial == "no clipping"
    assert "fresh AdamW" not in dict(asked)


def test_a_strong_optimizer_alone_proves_only_the_recipe(search):
    found, _ = search({"fresh AdamW": course(2.3, 0.1)})
    assert found.fix is not None
    assert found.fix.trial == "fresh AdamW"
    assert "instead of SGD with lr=0.1" in found.fix.sentence
    assert "MS741" not in found.fix.codes


@pytest.mark.parametrize(("helped", "refuted"), [(2.1, False), (2.3, True)])
def test_a_cause_is_refuted_only_if_none_of_its_own_changes_helped(search, flat, helped, refuted):
    bytes_ = entering(
        mean=(120.0,) * N, std=(60.0,) * N, min=(0.0,) * N, max=(255.0,) * N, shape=(16, 3, 8, 8)
    )
    facts = dataclasses.replace(flat.facts, inputs=(bytes_, dataclasses.replace(bytes_, type="Conv2d")))
    record = dataclasses.replace(flat, facts=facts)
    record = dataclasses.replace(record, findings=judge_training(record, facts).findings)
    assert record.findings[0].code == "MS726"
    others = {"standardised inputs": course(2.3, helped), "fresh AdamW": course(2.3, 0.1)}
    found, asked = search(others, record=record)
    assert "standardised inputs" in dict(asked)
    assert found.fix is not None
    assert (found.fix.trial, found.fix.is_general) == ("fresh AdamW", True)
    assert ("MS726" in found.refuted) is refuted
    causes = [one.code for one in judge_training(record, facts, found).findings if one.follows is None]
    assert causes == (["MS790", "MS726"] if refuted else ["MS726", "MS790"])


def test_a_training_that_diverges_is_tried_with_lower_rates(search):
    _, asked = search({}, base=course(2.3, 90.0))
    assert "rate / 10" in dict(asked)
    assert "rate x 10" not in dict(asked)


HELD = {"rate": 3e-6, "mean": 1e-6, "given": 1e-3}


@pytest.mark.parametrize(
    ("helping", "words", "write"),
    [
        (
            "constant rate",
            "LambdaLR keeps the mean learning rate at 1e-06, far below 0.001: ",
            "after each batch, and",
        ),
        (
            "rate x 100",
            "the learning rate of at most 3e-06 is too low: ",
            "change the schedule or its base rate",
        ),
    ],
)
def test_a_schedule_that_keeps_the_rate_low_is_named(search, flat, helping, words, write):
    schedule = ScheduleFacts("LambdaLR", "SGD", "train.py:8", 0, 4, 60, 1e-3)
    record = dataclasses.replace(flat, facts=dataclasses.replace(flat.facts, schedules=(schedule,)))
    survey = dataclasses.replace(SURVEY, settings=(SGD | HELD,), schedule="train.py:8")
    better = {"rate x 10": course(2.3, 2.0), "fresh AdamW": course(2.3, 0.3), helping: course(2.3, 0.3)}
    found, _ = search(better, survey, record=record)
    assert found.fix is not None
    assert (found.fix.trial, found.fix.source) == (helping, "train.py:8")
    assert words in found.fix.sentence
    assert write in found.fix.write


def test_lower_rates_are_tried_for_large_updates_and_what_a_second_seed_refutes_is_not_told(
    search, flat, dim
):
    large = dataclasses.replace(dim.findings[0], code="MS709")
    record = dataclasses.replace(flat, findings=(large,))
    others = {"no clipping": lambda seed: course(2.3, 1.5 if seed else 0.01), "rate / 100": course(2.3, 0.2)}
    found, asked = search(others, CLIP, course(2.3, 1.5), record)
    assert {"rate / 10", "rate / 100"} <= dict(asked).keys()
    assert str(found.outcome).endswith("from 2.27 to 1.5, and with a learning rate of 0.001 to 0.2")


def test_a_training_that_learns_is_given_no_fix(search):
    found, asked = search({"fresh AdamW": course(2.3, 0.01)}, base=course(2.3, 0.6))
    assert found.fix is None
    assert asked == [("", 0)]
    assert found.examined is None
    assert "the loss of the unchanged script falls from 2.24 to 0.6" in found.outcome


def test_what_has_nothing_to_act_on_is_no_proof(search):
    idle = dataclasses.replace(course(2.3, 0.1), has_acted=False)
    found, _ = search({"no clipping": idle}, CLIP)
    assert found.fix is None
    (row,) = [row for row in found.rows if row.name == "no clipping"]
    assert (row.helps, row.reason) == ("broke", "nothing to change")


def test_a_trial_that_breaks_does_not_end_the_search(search):
    broken = Measured(error="ValueError: no", has_acted=True, has_ended=True)
    found, _ = search({"no clipping": broken, "fresh AdamW": course(2.3, 0.3)}, CLIP)
    assert found.fix is not None
    assert found.fix.trial == "fresh AdamW"


@pytest.mark.parametrize(
    ("heart", "examined", "words"),
    [
        (course(2.3, 0.01), DATA, "look at the data and the labels"),
        (course(2.3, 2.3), MODEL, "look at the model and its loss"),
        (course(2.3, 2.2, right=1.0), DATA, "look at the data and the labels"),
        (course(2.3, 1.5), None, "slowly"),
        (BROKEN, None, "could not be tested"),
    ],
)
def test_where_to_look_if_no_change_helps(search, heart, examined, words):
    found, _ = search({"by heart": heart})
    assert found.fix is None
    assert found.examined == examined
    assert words in found.outcome
    assert found.outcome.startswith("no single change that was tried made the model learn")
    assert ({"MS710", "MS723"} <= set(found.refuted)) is (examined is not None)


def test_what_a_strong_optimizer_stirs_may_need_more_steps_and_refutes_nothing(search):
    found, _ = search({"by heart": course(2.3, 0.01), "fresh AdamW": course(2.3, 2.2)})
    assert (found.fix, found.examined, found.refuted) == (None, None, ())
    assert "more steps may be needed" in found.outcome


def test_a_wrong_gradient_is_where_to_look(search):
    slopes = {"layer": "block.act", "type": "Swish", "slopes": [(-1.0, 1.0)] * 3}
    found, asked = search({"gradient check": dataclasses.replace(course(2.3, 2.3, n=3), found=(slopes,))})
    assert found.examined == GRADIENT
    assert "the gradient of block.act (Swish) is -1 times the slope of its output" in found.outcome
    assert "by heart" not in dict(asked)


def test_no_time_is_left(search, flat):
    def late(name: str, seed: int, most: int) -> Measured:
        if name:
            raise NoMoreTrialsError("no time")
        return dataclasses.replace(course(2.3, 2.3), survey=SURVEY)

    found = Search(flat, lambda several, most: [late(*one, most) for one in several]).search()
    assert len(found.rows) == 1
    assert found.outcome == "no time"


@pytest.mark.parametrize(("helped", "is_vain"), [(2.3, True), (2.1, False)])
def test_what_helped_nothing_is_told_by_rule_also_where_nothing_is_proved(search, helped, is_vain):
    found, asked = search({"rate x 10": course(2.3, helped), "by heart": course(2.3, 1.5)})
    assert (found.fix, found.examined, found.refuted) == (None, None, ())
    assert "fresh AdamW" in dict(asked)
    assert found.in_vain.get("MS710", []) == [row.changed for row in found.rows if row.helps == NO] * is_vain
    assert len(found.in_vain["MS719"]) == 1  # of AdamW alone


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (Measured(error="EOFError: EOF when reading a line", has_ended=True), "cannot be repeated: EOFError"),
        (
            Measured(error="PermissionError: [Errno 13] Permission denied: '/data/out/a.pt'"),
            "--fix-writes /data/out",
        ),
        (course(2.3, 2.3, n=5), "only 5 steps"),
        (BROKEN, "no step was seen"),
        (dataclasses.replace(course(2.3, 2.3), has_ended=False), "much longer"),
    ],
)
def test_what_cannot_be_repeated_is_not_tried(search, base, words):
    found, asked = search({}, base=base)
    assert (found.rows, found.fix) == ((), None)
    assert words in found.outcome
    assert len(asked) == 1


@pytest.mark.parametrize(("n", "steps"), [(60, 60), (300, 120), (1000, 340), (100_000, 600)])
def test_trials_are_cut_to_the_steps_needed(n, steps):
    assert steps_of(dataclasses.replace(training(failing=True), steps=n)) == steps


@pytest.mark.slow
def test_trials_reach_beyond_a_late_break(flat):
    from modelscope_cli.records.training_facts import Birth

    late = dataclasses.replace(flat, steps=1000, births=(Birth("loss", 900, "Net", "", 0),))
    assert steps_of(late) == 940


@pytest.mark.slow
def test_nothing_of_trials_is_imported_if_they_are_not_asked_for():
    code = """
import sys
import modelscope_cli.watching.run_script
from modelscope_cli.watching import watch
assert not [name for name in sys.modules if name.startswith("modelscope_cli.watching.trials")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)
