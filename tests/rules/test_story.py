"""One story: each cause once, at the top, and below it what follows from it; and the verdict over all."""

import math
from dataclasses import replace

import pytest
from trainings import (
    FALLING,
    FLAT,
    LAYERS,
    PARAMETERS,
    SINCE,
    N,
    certain,
    criterion,
    entering,
    event,
    from_step,
    layer,
    loss,
    model,
    parameter,
    stepping,
    training,
)

from modelscope_cli.records.findings import ERROR, WARNING
from modelscope_cli.records.training_facts import OUTPUT, Birth, ScheduleFacts, TimeFacts
from modelscope_cli.records.watch import LEARNING, SOUND, UNKNOWN, WatchRecord
from modelscope_cli.report.training_facts import training_answer
from modelscope_cli.report.watch.table import review
from modelscope_cli.rules.training import RULES, judge_training
from modelscope_cli.rules.training.progress import MIN_STEPS
from modelscope_cli.rules.training.rule_types import FEW_STEPS, Link


def judged(record: WatchRecord):
    return judge_training(record, record.facts)


def told(record: WatchRecord) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.follows) for finding in judged(record).findings]


DEAD = {"layers": (LAYERS[0], layer(zero_fraction=from_step(0.5, 0.95)), LAYERS[2])}
LARGE = {"parameters": (parameter(update_ratio=from_step(1e-3, 0.3)), *PARAMETERS[1:])}
SMALL_STEPS = parameter(update_ratio=(1e-7,) * N).series
SYMPTOMS = {"failing": True, **DEAD, **LARGE}


def test_a_finding_follows_from_one_earlier_in_the_chain_of_causes() -> None:
    assert told(training(**SYMPTOMS)) == [("MS709", None), ("MS705", "MS709"), ("MS735", "MS709")]


DYING = (LAYERS[0], layer(dead_fraction=from_step(0.0, 0.6)), LAYERS[2])


def test_channels_that_die_follow_from_targets_that_are_far_away() -> None:
    far = criterion("mse_loss", classes=None, accuracy=(None,) * N, guessing=(1.0,) * N, value=(400.0,) * N)
    record = training(loss=(loss((400.0,) * N),), criteria=(far,), layers=DYING)
    assert told(record) == [("MS735", None), ("MS731", "MS735")]
    assert "20 times as far from the first outputs" in judged(record).findings[0].message
    raw = entering("fc", "Linear", mean=(60.0,) * N, std=(60.0,) * N, min=(0.0,) * N, max=(255.0,) * N)
    bytes_in = replace(record, facts=replace(record.facts, inputs=(entering(), raw)))
    assert told(bytes_in)[0] == ("MS726", None)  # in an autoencoder the same values are the targets


@pytest.mark.parametrize(
    ("size", "scale", "codes"), [(2e5, 1.0, ["MS735"]), (30.0, 1.0, []), (2e5, 30.0, [])]
)
def test_targets_of_another_scale_are_told_by_a_loss_that_is_no_criterion(size, scale, codes) -> None:
    flat = tuple(size**2 * (1 + 0.3 * (i % 3)) for i in range(N))
    norms = tuple(scale * (value / 4) ** 0.5 for value in flat)  # of a mean of 16 squares
    last = layer("head", "Linear", 2, grad_norm=norms)
    record = training(loss=(loss(flat),), criteria=(), layers=(*LAYERS[:2], last))
    assert [one.code for one in judged(record).findings] == codes
    assert ("scale the targets" in (judged(record).reason or "")) == (size == 30.0)


def test_channels_that_die_come_after_the_one_class_that_is_predicted() -> None:
    lazy = criterion(value=FLAT, accuracy=(0.1,) * N, commonest_prediction=(1.0,) * N)
    found = told(training(failing=True, layers=DYING, criteria=(lazy,)))
    assert found == [("MS736", None), ("MS735", "MS736"), ("MS731", None)]


@pytest.mark.parametrize(("size", "codes"), [(9e3, []), (2e4, ["MS706"])])
def test_values_that_grow_beyond_all_measure_are_told_of_a_training_that_learns(size, codes) -> None:
    grown = training(layers=(LAYERS[0], layer(std=from_step(1.0, size)), LAYERS[2]))
    assert [code for code, _ in told(grown)] == codes


def test_lost_time_comes_last_and_neither_explains_nor_follows_from_anything() -> None:
    time = TimeFacts(steps=N, passes=N, seconds={"data": 40.0, "forward": 60.0}, workers=2)
    findings = told(training(time=time, **SYMPTOMS))
    assert findings == [("MS709", None), ("MS705", "MS709"), ("MS735", "MS709"), ("MS771", None)]


def test_of_equal_rank_the_earlier_finding_explains_the_later() -> None:
    early = layer(std=from_step(1.0, 200.0, SINCE - 9))
    late = layer("late", zero_fraction=from_step(0.5, 0.95), order=2)
    assert told(training(failing=True, layers=(LAYERS[0], early, late))) == [
        ("MS706", None),
        ("MS705", "MS706"),
        ("MS735", "MS706"),
    ]


def test_of_equal_rank_and_step_the_upstream_layer_comes_first() -> None:
    first = layer("first", zero_fraction=from_step(0.5, 0.95), order=0)
    second = layer("second", std=from_step(1.0, 200.0), order=1)
    assert [code for code, _ in told(training(failing=True, layers=(first, second, LAYERS[2])))][:2] == [
        "MS705",
        "MS706",
    ]
    first = replace(first, series=second.series)
    second = layer("second", zero_fraction=from_step(0.5, 0.95), order=1)
    assert told(training(failing=True, layers=(first, second, LAYERS[2])))[0] == ("MS706", None)


def test_of_certain_findings_errors_come_before_warnings() -> None:
    both = training(
        optimizers=(stepping(uncleared=16),), models=(model(evaluation_since=0, frozen_modes=("Dropout",)),)
    )
    assert told(both) == [("MS713", None), ("MS718", None)]


def test_two_independent_mistakes_are_both_reported_as_causes() -> None:
    twice = replace(
        training(optimizers=(stepping(uncleared=16),), criteria=(criterion(is_probability=(True,) * N),))
    )
    findings = told(twice)
    assert findings[0] == ("MS713", None)
    assert ("MS720", None) in findings


@pytest.mark.parametrize(("harmless", "facts"), [
    ("MS718", {"models": (model(evaluation_since=0, frozen_modes=("Dropout",)),)}),
    ("MS732", {"models": (model(norm_values=(1, 2)),)}),
])  # fmt: skip
def test_a_harmless_finding_is_not_a_cause(harmless: str, facts) -> None:
    findings = told(training(**SYMPTOMS, **facts))
    assert (harmless, None) in findings
    assert ("MS709", None) in findings
    assert harmless not in {follows for _, follows in findings}


def test_a_norm_of_few_values_explains_dead_units_that_nothing_else_explains() -> None:
    few = {"models": (model(norm_values=(4, 1), norm_name="fc"),)}
    assert told(training(failing=True, **DEAD, **few)) == [
        ("MS732", None),
        ("MS705", "MS732"),
        ("MS735", "MS732"),
    ]
    assert judged(training(failing=True, **DEAD, **few)).findings[0].layer == "fc"
    many = {"models": (model(norm_values=(4096, 1)),)}
    assert ("MS705", None) in told(training(failing=True, **DEAD, **many))


def test_the_advice_on_a_consequence_begins_with_its_cause() -> None:
    """Gradients that are clipped to nothing need no higher learning rate."""
    still = {"parameters": tuple(replace(one, series=SMALL_STEPS) for one in PARAMETERS)}
    clipped = event("clipped", "gradients are clipped to 1e-06 (a.py:7)", step=N)
    first, second, *_ = judged(training(failing=True, events=(clipped,), **still)).findings
    assert (first.code, first.place, second.code, second.follows) == ("MS741", "a.py:7", "MS710", "MS741")
    assert second.hint == "correct MS741 first; if this is still found: raise the learning rate"


@pytest.mark.parametrize(
    ("norms", "is_found"), [((None,) * N, True), ((1e-9,) * N, True), ((1e-3,) * N, False)]
)
def test_a_loss_that_does_not_depend_on_the_output_needs_no_higher_learning_rate(norms, is_found) -> None:
    layers = tuple(replace(one, series=replace(one.series, grad_norm=norms)) for one in LAYERS)
    first = judged(training(failing=True, layers=layers)).findings[0]
    assert (first.code == "MS710" and "depend" in first.message) is is_found
    if is_found:
        assert "learning rate" not in first.hint


def test_what_begins_once_values_are_not_finite_follows_from_that() -> None:
    birth = Birth(OUTPUT, SINCE, "Net", "relu", 0)
    broken = training(
        loss=(loss((*FALLING[:SINCE], *(math.nan,) * (N - SINCE))),),
        births=(birth,),
        layers=(LAYERS[0], layer(nan_count=from_step(0, 9)), layer("late", std=from_step(1.0, 1e3), order=2)),
        parameters=(parameter(update_ratio=from_step(1e-3, 0.3)), *PARAMETERS[1:]),
    )
    findings = told(broken)
    assert findings[0] == ("MS702", None)
    assert {follows for _, follows in findings[1:]} == {"MS702"}
    assert {"MS701", "MS706", "MS709"} <= {code for code, _ in findings}


def test_what_was_there_before_values_became_non_finite_is_the_cause() -> None:
    """Steps that are far too large, and a loss that had risen far when it became infinite."""
    climbing = tuple(2.0 * 1.2**i for i in range(SINCE))
    broken = training(
        loss=(loss((*climbing, *(math.inf,) * (N - SINCE))),),
        births=(Birth(OUTPUT, SINCE, "Net", "relu", 0),),
        parameters=(parameter(update_ratio=from_step(1e-3, 0.5, 2)), *PARAMETERS[1:]),
        criteria=(),
    )
    findings = told(broken)
    assert findings[0] == ("MS709", None)
    assert {follows for _, follows in findings[1:]} == {"MS709"}


def test_a_code_review_says_since_when_once() -> None:
    record = training(failing=True, layers=DYING, **LARGE)
    first, *others = judged(record).findings
    other = replace(first, message="0 since step 12", since_step=1)  # not the same step
    problems = review(replace(record, findings=(other, first, *others)), (), None).problems
    assert problems[0].message.startswith("0 since step 12, since step 1")
    assert {one.message.count("since step") for one in problems[1:]} == {0, 1}


def test_broadcasting_explains_only_what_predictions_near_the_mean_of_the_targets_show() -> None:
    broadcast = criterion("mse_loss", classes=None, accuracy=(None,) * N, shapes=((32, 1), (32,)))
    findings = dict(told(training(**SYMPTOMS | {"criteria": (broadcast,)})))
    assert {code for code, follows in findings.items() if follows == "MS724"} == {"MS735"}
    assert len(set(findings.values())) > 2


@pytest.mark.parametrize(("last", "noise"), [(7.0, 0.4), (3.5, 0.05)])
def test_large_steps_after_which_the_loss_is_higher_are_an_error(last: float, noise: float) -> None:
    """In a run too short for a loss that has not fallen, and too noisy for one that diverges."""
    risen = tuple(2.0 + (last - 2.0) * min(i / 8, 1.0) + (i % 2) * noise * last for i in range(40))
    ratios = parameter(update_ratio=(0.3,) * N)
    record = training(
        steps=40, loss=(loss(risen),), lr=(loss((0.1,) * 40),), criteria=(), parameters=(ratios,)
    )
    findings = {one.code: one.severity for one in judged(record).findings}
    assert findings["MS709"] == ERROR


@pytest.mark.parametrize(("size", "code"), [(0.2, "MS735"), (4.0, "MS709")])
def test_large_steps_of_a_weight_that_starts_at_zero_tell_nothing_until_it_has_grown(
    size: float, code: str
) -> None:
    norms = tuple(size + 0.01 * (i % 2) for i in range(N))
    facts = certain(start_rms=0.0)
    token = parameter("cls", (1, 1, 16), facts=facts, update_ratio=(0.3,) * N, weight_norm=norms)
    assert told(training(failing=True, parameters=(*PARAMETERS, token)))[0] == (code, None)


@pytest.mark.parametrize(("last", "severity"), [(8.4, ERROR), (2.5, ERROR), (2.2, WARNING)])
def test_values_that_explode_are_an_error_where_the_loss_is_no_better_than_at_first(
    last: float, severity: str
) -> None:
    """In a run whose loss is too noisy, and which is too short, to tell whether it learns."""
    values = (2.4, *(last + 0.9 * last * (-1) ** i for i in range(39)))
    grown = layer(std=from_step(1.0, 5000.0))
    record = training(
        steps=40, loss=(loss(values),), lr=(loss((0.1,) * 40),), criteria=(), layers=(grown, LAYERS[2])
    )
    assert [(one.code, one.severity) for one in judged(record).findings] == [("MS706", severity)]


@pytest.mark.parametrize(("last", "severity"), [(2.27, ERROR), (2.15, WARNING)])
def test_a_loss_hardly_below_that_of_guessing_is_no_better_than_it(last: float, severity: str) -> None:
    values = (2.4, *(last + 0.9 * last * (-1) ** i for i in range(39)))
    seen = criterion(value=(*values, *values[1:21]), accuracy=(None,) * N)
    changes = {"layers": (layer(std=from_step(1.0, 5000.0)), LAYERS[2]), "criteria": (seen,)}
    record = training(steps=40, loss=(loss(values),), lr=(loss((0.1,) * 40),), **changes)
    assert [one.severity for one in judged(record).findings if one.code == "MS706"] == [severity]


def test_findings_about_data_come_first() -> None:
    spoilt = training(**SYMPTOMS, inputs=(entering(std=(0.0,) * N, min=(0.0,) * N, max=(0.0,) * N),))
    assert told(spoilt)[0] == ("MS727", None)
    assert {follows for _, follows in told(spoilt)[1:]} == {"MS727"}


def test_a_cause_is_followed_at_once_by_all_that_follows_from_it() -> None:
    record = training(**SYMPTOMS, models=(model(evaluation_since=0, frozen_modes=("Dropout",)),))
    findings = told(record)
    groups = [code if follows is None else follows for code, follows in findings]
    assert groups == sorted(groups, key=groups.index)
    causes = [code for code, follows in findings if follows is None]
    assert {follows for _, follows in findings if follows} <= set(causes)


def test_every_rule_has_its_place_in_the_chain() -> None:
    assert {rule.link for rule in RULES} == set(Link)


# The three answers.


def short(n: int, **changes) -> WatchRecord:
    return training(steps=n, loss=(loss(FALLING[:n]),), lr=(loss((0.1,) * n),), criteria=(), **changes)


def test_a_short_run_cannot_be_judged() -> None:
    judgement = judged(short(MIN_STEPS - 1))
    assert judgement.verdict == UNKNOWN
    assert judgement.reason == f"too short to judge, with {MIN_STEPS - 1} of the {MIN_STEPS} steps needed"
    assert "too short" not in (judged(short(MIN_STEPS)).reason or "")


def test_certain_findings_are_reported_in_a_short_run_too() -> None:
    detached = certain(has_gradient=False, has_changed=False)
    never = parameter(facts=detached, grad_norm=(None,) * N)
    sick = short(FEW_STEPS, parameters=(never, *PARAMETERS[1:]))
    assert [(one.code, one.layer) for one in judged(sick).findings] == [("MS715", "fc.weight")]


NOISY = tuple(2.0 + 0.5 * (-1) ** i - 0.002 * i for i in range(N))
CANNOT_TELL = {
    "no step": ({"steps": 0, "loss": (), "lr": (), "optimizers": ()}, "no step was seen"),
    "no loss": ({"loss": (), "criteria": ()}, "no loss was seen"),
    "no layer": ({"layers": ()}, "no layer could be seen"),
    "a loss at what guessing costs": (
        {"loss": (loss(NOISY),), "criteria": (criterion(value=NOISY, accuracy=(None,) * N),)},
        "chance level is",
    ),
    "a loss within its noise": ({"loss": (loss(NOISY),), "criteria": ()}, "a difference within the noise"),
    "a falling loss of which the predictions are no better than a guess": (
        {"criteria": (criterion(accuracy=(0.1,) * N),)},
        "the mean loss is 1.97",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("growth", "codes"), [(200.0, []), (2000.0, ["MS706"])])
def test_a_hidden_layer_that_grows_a_thousand_times_is_told_however_little_the_loss_tells(
    growth: float, codes: list[str]
) -> None:
    grown = layer(std=from_step(1.0, growth, SINCE))
    unclear = {"loss": (loss(NOISY),), "criteria": ()}
    assert [code for code, _ in told(training(layers=(grown, *LAYERS[1:]), **unclear))] == codes
    assert "MS706" not in [code for code, _ in told(training(layers=(grown, *LAYERS[1:])))]  # it learns


@pytest.mark.parametrize("what", CANNOT_TELL)
def test_cannot_tell_comes_with_its_reason(what: str) -> None:
    changes, reason = CANNOT_TELL[what]
    judgement = judged(training(**changes))
    assert (judgement.findings, judgement.verdict) == ((), UNKNOWN)
    assert reason in (judgement.reason or "")


@pytest.mark.parametrize(
    ("accuracy", "loss_there", "verdict"), [(0.4, 2.0, SOUND), (0.12, 2.0, UNKNOWN), (0.4, 3.0, UNKNOWN)]
)
def test_an_accuracy_beyond_guessing_is_learning_whatever_the_noise_of_the_loss(
    accuracy: float, loss_there: float, verdict: str
) -> None:
    trained = criterion(value=NOISY, accuracy=(None,) * N)
    last = {"step": (N,), "rows": (80,), "accuracy": (accuracy,), "value": (loss_there,)}
    evaluated = criterion(is_training=False, commonest_labels=(0.1,), commonest_label=0.1, **last)
    judgement = judged(training(loss=(loss(NOISY),), criteria=(trained, evaluated)))
    assert (judgement.findings, judgement.verdict) == ((), verdict)


def test_a_falling_loss_with_nothing_to_compare_it_with_is_learning() -> None:
    judgement = judged(training(criteria=()))
    assert (judgement.findings, judgement.verdict) == ((), LEARNING)
    assert (judgement.reason or "").startswith("the loss fell from ")


def phases(*, second: tuple[float, ...], began: int) -> WatchRecord:
    """Return two optimizers with a loss of each, of which the second began after so many steps."""
    first = stepping(began=0, ended=N - 1)
    later = stepping("SGD#2", began=began, ended=began + N - 1)
    return training(loss=(loss(), loss(second, "SGD#2")), criteria=(), optimizers=(first, later))


def test_optimizers_one_after_the_other_are_phases_that_are_judged_by_their_own_loss() -> None:
    judgement = judged(phases(second=FALLING, began=N))
    assert (judgement.findings, judgement.verdict) == ((), LEARNING)
    assert judgement.reason is not None
    assert judgement.reason.startswith("both losses fell: Net 1.97 to 0.251, SGD#2 1.97 to 0.251")
    assert told(phases(second=tuple(reversed(FALLING)), began=N))[0][0] == "MS704"


def test_optimizers_that_take_turns_are_not_phases() -> None:
    assert judged(phases(second=FALLING, began=1)).verdict == UNKNOWN


def test_one_of_two_adversarial_losses_may_rise() -> None:
    critics = tuple(reversed(FALLING))
    both = training(loss=(loss(), loss(critics, "SGD#2")), criteria=())
    assert (told(both), judged(both).verdict) == ([], UNKNOWN)
    assert told(training(loss=(loss(critics),), criteria=()))[0][0] == "MS704"


def test_a_loss_below_zero_that_does_not_fall_is_not_a_fault() -> None:
    """A reward or a likelihood has no scale that a fall could be held against."""
    assert judged(training(loss=(loss((-1.0,) * N),), criteria=())).verdict == UNKNOWN


def test_a_flat_loss_is_a_fault_that_names_the_chance_level() -> None:
    (found,) = judged(training(failing=True)).findings
    assert (found.code, found.value) == ("MS735", FLAT[-1])
    assert "chance level is 2.3;" in found.message
    assert "accuracy 10.0 %" in found.message


# What a reader sees: dates and severities in the order of the chain, and the cure of the cause.


def test_what_was_there_before_a_cause_does_not_follow_from_it() -> None:
    early = {"layers": (LAYERS[0], layer(zero_fraction=from_step(0.5, 0.95, SINCE - 9)), LAYERS[2])}
    findings = judged(training(failing=True, **early, **LARGE)).findings
    since = {one.code: one.since_step for one in findings}
    assert since["MS705"] == SINCE - 9 < since["MS709"] == SINCE
    assert {one.code: one.follows for one in findings}["MS705"] is None
    assert since["MS735"] is None


def test_an_output_that_ignores_the_input_follows_from_a_layer_that_died() -> None:
    dead = LAYERS[0], layer(zero_fraction=(1.0,) * N), LAYERS[2]
    assert told(training(failing=True, models=(model(outputs=(9, 9, 0.0, 0.0)),), layers=dead))[:2] == [
        ("MS705", None),
        ("MS755", "MS705"),
    ]


def test_a_cause_is_as_severe_as_the_worst_that_follows_from_it() -> None:
    cause, *others = judged(training(**SYMPTOMS)).findings
    assert {one.code: one.severity for one in others} == {"MS705": "warning", "MS735": "error"}
    assert (cause.code, cause.severity) == ("MS709", "error")


def test_a_loss_seen_on_training_data_only_leaves_memorising_untested() -> None:
    judgement = judged(training())
    memorising = "not tested: whether the model memorises (the loss was seen on training data only)"
    learns = "it learns: the loss fell from 1.97 to 0.251"
    assert (judgement.findings, judgement.verdict) == ((), SOUND)
    assert judgement.reason == f"{learns}; {memorising}"
    assert training_answer((), SOUND, learns, "loss 2") == f"Nothing wrong found; {learns}"
    assert training_answer((), SOUND, memorising, "loss 2").startswith(f"Nothing wrong found; {memorising}; ")
    assert memorising in (judged(training(criteria=())).reason or "")
    passes = model(validated=(0, 0.0, 1.0))  # whose accuracy the script computes by itself
    evaluation = "the evaluation (its forward passes were seen, but not its labels)"
    assert judged(training(models=(passes,))).reason == f"{learns}; {memorising}; {evaluation}"
    seen = criterion(), criterion(is_training=False)
    assert judged(training(models=(passes,), criteria=seen)).reason == learns
    assert judged(training(loss=(loss((0.1,) * N),), criteria=seen)).reason is None  # low from the start
    layers = "the layers of a compiled model, which are not visible; "
    compiled = judged(training(events=(event("compiled", ""),))).reason
    assert compiled == f"{learns}; {memorising.replace('whether', f'{layers}whether')}"


@pytest.mark.parametrize(("right", "is_memorised"), [(0.84, False), (0.99, True)])
def test_a_short_training_has_memorised_only_what_it_knows_nearly_by_heart(
    right: float, is_memorised: bool
) -> None:
    one, other = criterion(accuracy=(right,) * N), criterion(is_training=False, accuracy=(0.1,) * N)
    assert ("MS742" in dict(told(training(criteria=(one, other))))) is is_memorised


@pytest.mark.parametrize(
    ("right", "n", "cost", "is_memorised"),
    [(1, 4, 4.0, True), (2, 4, 4.0, True), (1, 4, 1.1, False), (3, 4, 4.0, False), (26, 80, 2.0, True)],
)
def test_few_labels_show_memorising_by_their_interval_and_a_loss_far_above_chance(
    right: int, n: int, cost: float, is_memorised: bool
) -> None:
    one = criterion(accuracy=(0.93,) * N)
    shares = {
        "classes": 4,
        "label_entropy": math.log(4),
        "commonest_label": 0.25,
        "commonest_labels": (0.25,),
    }
    of_last = {"step": (N,), "value": (cost * math.log(4),), "rows": (n,), "accuracy": (right / n,)}
    other = criterion(is_training=False, **shares, **of_last)
    one = replace(one, classes=4)
    messages = [each.message for each in judged(training(criteria=(one, other))).findings]
    assert len(messages) == is_memorised
    assert all("95 % interval" in said and "loss above chance level" in said for said in messages)


@pytest.mark.parametrize(("last", "codes_found"), [(1e-3, ["MS758"]), (5e-2, [])])
def test_a_cycle_that_ends_before_its_rate_is_near_the_peak(last: float, codes_found: list[str]) -> None:
    schedules = (ScheduleFacts("OneCycleLR", "SGD", "a.py:6", 50_000, N, N, base=1.0),)
    noisy, rates = tuple(2.3 + 0.5 * (i % 3) for i in range(N)), tuple(last * (i + 1) / N for i in range(N))
    record = training(loss=(loss(noisy),), lr=(loss(rates),), criteria=(), schedules=schedules)
    assert [one.code for one in judged(record).findings] == codes_found
    assert all("div_factor" in one.hint for one in judged(record).findings)


def test_what_is_memorised_is_told_with_both_accuracies() -> None:
    half = criterion(accuracy=(0.6,) * N)
    shown = {"step": (N,), "rows": (100,), "commonest_labels": (0.1,), "accuracy": (0.1,), "value": (4.0,)}
    reason = judged(training(criteria=(half, criterion(is_training=False, **shown)))).reason
    assert reason is not None
    assert reason.startswith(
        "accuracy 60.0 % in training, as if it memorises, but the accuracy in evaluation is 10.0 %"
    )


@pytest.mark.parametrize("changes", [{"steps": 5}, {"loss": ()}, {"steps": 0}])
def test_a_record_that_an_error_stopped_is_called_incomplete(changes) -> None:
    broken = training(**changes, events=(event("broken", "recording stopped: boom"),))
    assert (judged(broken).reason or "").startswith("the record is incomplete: an error stopped it after")
    assert "after the error that stopped" in (judged(training(events=broken.events)).reason or "")
