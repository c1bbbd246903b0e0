"""Whether a training learns: a fall is told from none, and from what its noise hides."""

import math
import random
import statistics
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tolerance import close
from trainings import (
    CLASSES,
    FACTS,
    FALLING,
    FLAT,
    N,
    criterion,
    entering,
    judged,
    loss,
    model,
    stepping,
    training,
)

from modelscope_cli.records.watch import POLICY, Event, ScalarSeries, TrainingFacts
from modelscope_cli.rules.training.guessing import scale_of
from modelscope_cli.rules.training.progress import (
    MIN_STEPS,
    CourseOfTraining,
    LossCourse,
    course_of,
    doubt,
    follow,
)
from modelscope_cli.rules.training.rule_types import lasting, share_of_steps

SEEDS = st.integers(0, 10_000)
LENGTHS = st.integers(MIN_STEPS, 400)


def noisy(values, size: float, seed: int) -> tuple[float, ...]:
    noise = random.Random(seed)
    return tuple(value + noise.gauss(0, size) for value in values)


def line(start: float, end: float, n: int) -> list[float]:
    return [start + (end - start) * i / (n - 1) for i in range(n)]


def followed(*values, facts: TrainingFacts | None = None, lr=()) -> CourseOfTraining:
    losses = [loss(one, f"SGD#{place}" if place else "SGD") for place, one in enumerate(values)]
    return follow(losses, lr, facts or TrainingFacts())


def course(values) -> LossCourse:
    return followed(values).losses[0]


def test_the_loss_of_a_policy_gradient_may_rise() -> None:
    rising = loss(line(1.0, 3.0, 200), "SGD")
    assert follow([rising], (), TrainingFacts()).learns is False
    one = follow([rising], (), TrainingFacts(), [Event(0, POLICY, "")])
    assert (one.learns, one.moves) == (None, "it is a policy gradient")


# Without noise


@given(start=st.floats(1e-3, 1e6), share=st.floats(0.0, 0.8), n=LENGTHS)
def test_a_fall_without_noise_is_detected_at_any_scale_and_length(start: float, share: float, n: int) -> None:
    seen = course(line(start, share * start, n))
    assert seen.has_fallen is True
    assert not seen.has_risen
    assert followed(line(start, share * start, n)).learns is True


@given(value=st.floats(1e-3, 1e6), n=LENGTHS)
def test_a_flat_line_has_neither_fallen_nor_risen(value: float, n: int) -> None:
    seen = course([value] * n)
    assert (seen.has_fallen, seen.has_risen) == (False, False)


@given(start=st.floats(1e-3, 1e6), times=st.floats(1.5, 100.0), n=LENGTHS)
def test_a_rise_without_noise_is_detected(start: float, times: float, n: int) -> None:
    seen = course(line(start, times * start, n))
    assert seen.has_risen
    assert seen.has_fallen is False


@given(n=st.integers(1, MIN_STEPS - 1))
def test_too_few_steps_give_no_answer(n: int) -> None:
    seen = course(line(2.0, 0.1, n) if n > 1 else [2.0])
    assert seen.has_fallen is None
    assert not seen.has_risen
    assert followed([2.0] * n).learns is None


# With noise: of many draws next to none is told wrong. Sequences are fixed by their seeds.


def verdicts(values, size: float, draws: int = 300) -> list[bool | None]:
    return [course(noisy(values, size, seed)).has_fallen for seed in range(draws)]


@pytest.mark.parametrize("n", [20, 60, 300])
@pytest.mark.parametrize("size", [0.01, 0.1, 0.5])
def test_a_flat_noisy_loss_is_rarely_reported_as_fallen(n: int, size: float) -> None:
    said = verdicts([2.0] * n, size)
    assert said.count(True) <= 0.01 * len(said)


@pytest.mark.parametrize("n", [60, 300])
@pytest.mark.parametrize("size", [0.01, 0.1, 0.3])
def test_a_noisy_loss_that_halves_is_never_reported_as_not_fallen(n: int, size: float) -> None:
    said = verdicts(line(2.0, 1.0, n), size)
    assert said.count(False) == 0
    assert said.count(True) >= 0.8 * len(said)


def test_with_much_noise_there_is_no_answer() -> None:
    said = verdicts(line(2.0, 1.8, 40), 1.0)
    assert said.count(None) >= 0.8 * len(said)


def test_noise_alone_is_rarely_reported_as_a_rise() -> None:
    risen = [course(noisy([2.0] * n, 0.1, seed)).has_risen for n in (60, 67, 120, 300) for seed in range(100)]
    assert sum(risen) <= 0.02 * len(risen)


@given(seed=SEEDS, scale=st.floats(1e-3, 1e3))
@settings(max_examples=50)
def test_the_answer_does_not_depend_on_the_unit(seed: int, scale: float) -> None:
    values = noisy(line(2.0, 1.6, 60), 0.2, seed)
    scaled = [scale * value for value in values]
    assert course(values).has_fallen == course(scaled).has_fallen
    assert course(values).has_risen == course(scaled).has_risen


def test_a_loss_that_ends_non_finite_has_broken() -> None:
    for end in (math.nan, math.inf):
        seen = course([*FALLING, end, end])
        assert (seen.has_broken, seen.has_fallen) == (True, False)
        assert followed([*FALLING, end, end]).learns is False
    assert not course([*FALLING[:30], math.nan, *FALLING[30:]]).has_broken
    assert course([math.nan] * N).has_broken


def test_a_fall_after_diverging_at_once_does_not_count() -> None:
    seen = course([2.3, 80.0, 75.0, *line(70.0, 10.0, 57)])
    assert seen.has_fallen is False
    assert seen.has_risen


def test_the_first_loss_is_that_after_the_warm_up() -> None:
    rates = [loss((1e-6,) * 15 + (0.1,) * 45)]
    values = (*(9.0 for _ in range(15)), *line(2.3, 2.3, 45))
    assert followed(values).losses[0].start > 8
    assert followed(values, lr=rates).losses[0].start == close(2.3)


# What guessing costs


def learns(**changes) -> bool | None:
    values = changes.pop("value", FALLING)
    return followed(values, facts=TrainingFacts(criteria=(criterion(value=values, **changes),))).learns


def test_accuracy_decides_where_the_loss_is_flat() -> None:
    assert learns(value=FLAT) is True  # the accuracy rises to 1
    assert learns(value=FLAT, accuracy=(0.1,) * N) is False
    assert learns(value=(2.3 - 0.3,) * N, accuracy=(0.6,) * N) is True


def test_a_fall_to_the_chance_level_is_not_learning() -> None:
    guessing = tuple(line(9.0, math.log(CLASSES), N - 20)) + (math.log(CLASSES),) * 20
    assert learns(value=guessing, accuracy=(0.1,) * N) is False
    assert followed(guessing).learns is True  # who knows no classes cannot see that


@pytest.mark.parametrize(("accuracy", "learns"), [(0.9, True), (0.05, None)])
def test_a_falling_negative_loss_is_contradicted_by_predictions_below_chance(
    accuracy: float, learns: bool | None
) -> None:
    """As where one of several terms of the loss has the wrong sign."""
    rising = criterion(value=tuple(line(0.7, 1.4, N)), accuracy=(accuracy,) * N)
    falls = tuple(line(0.2, -0.9, N))
    assert followed(falls, facts=TrainingFacts(criteria=(rising,))).learns is learns


def test_a_loss_that_is_low_from_the_start_need_not_fall() -> None:
    assert learns(value=(0.1,) * N, accuracy=(None,) * N) is True


def test_accuracy_is_compared_with_always_predicting_the_commonest_label() -> None:
    imbalanced = {"label_entropy": 0.33, "commonest_label": 0.9, "classes": 2}
    assert learns(value=(0.33,) * N, accuracy=(0.9,) * N, **imbalanced) is not True
    progress = followed(FLAT, facts=TrainingFacts(criteria=(criterion(accuracy=(0.5,) * N),)))
    assert (progress.guessed, progress.accuracy) == (1 / CLASSES, close(0.5))


def test_accuracy_is_no_yardstick_for_weighted_classes() -> None:
    """Rare positives with a weight are predicted too often, which guessing the commonest label never does."""
    plain = criterion(accuracy=(0.05,) * N)
    weighted = replace(plain, is_weighted=True)
    seen = [followed(FALLING, facts=TrainingFacts(criteria=(one,))).learns for one in (plain, weighted)]
    assert seen == [None, True]


def test_the_chance_level_is_scaled_like_the_loss() -> None:
    """Four accumulated passes, or a sum over 32 rows; what varies against its criterion has no such price."""
    seen = TrainingFacts(criteria=(criterion(),))
    for times in (1, 4, 32):
        progress = followed([times * value for value in FALLING], facts=seen)
        assert progress.chance == close(times * math.log(CLASSES))
        assert progress.learns is True
    with_another_term = [value + 0.5 * i for i, value in enumerate(FALLING)]
    assert followed(with_another_term, facts=seen).chance is None
    assert followed([-value for value in FALLING], facts=seen).chance is None
    with_a_steady_term = [value * (1.6 + 0.001 * (i % 9)) for i, value in enumerate(FALLING)]
    assert followed(with_a_steady_term, facts=seen).chance is None
    with_a_penalty = [value * (1.01 + 0.001 * (i % 9)) for i, value in enumerate(FALLING)]
    assert followed(with_a_penalty, facts=seen).chance == close(math.log(CLASSES))
    assert scale_of(criterion(), []) is None


@pytest.mark.parametrize(("labels", "chance"), [(128, math.log(CLASSES)), (128 * 144, 40.0)])
def test_a_sum_over_the_pixels_of_a_sample_costs_more_than_one_label(labels: int, chance: float) -> None:
    name = "binary_cross_entropy"
    seen = criterion(name=name, is_summed=True, rows=(labels,) * N, guessing=(40.0,) * N)
    facts = TrainingFacts(criteria=(seen,), inputs=(entering(shape=(128, 16)),))
    assert followed(FALLING, facts=facts).chance == close(chance)


def test_numbers_whose_loss_still_falls_towards_the_best_constant_are_not_condemned() -> None:
    falls = tuple(line(9.0, 4.5, N))
    squares = criterion("mse_loss", classes=None, accuracy=(None,) * N, guessing=(4.0,) * N, value=falls)
    assert followed(falls, facts=TrainingFacts(criteria=(squares,))).learns is None


@pytest.mark.parametrize(("at", "learns"), [(4.5, False), (4.0, False), (1.0, True)])
def test_the_chance_level_of_squared_errors_is_the_variance_of_the_targets(at: float, learns: bool) -> None:
    squares = criterion("mse_loss", classes=None, guessing=(4.0,) * N, value=(at,) * N)
    progress = followed((at,) * N, facts=TrainingFacts(criteria=(squares,)))
    assert (progress.chance, progress.learns) == (close(4.0), learns)


def test_several_losses_have_no_chance_level() -> None:
    two = criterion(), criterion("mse_loss", classes=None)
    assert followed(FALLING, facts=TrainingFacts(criteria=two)).chance is None
    seen = criterion(), criterion("mse_loss", classes=None, is_training=False)
    assert followed(FALLING, facts=TrainingFacts(criteria=seen)).chance is not None


def test_two_optimizers_with_losses_count_as_adversarial() -> None:
    progress = followed(FALLING, FLAT)
    assert (progress.is_adversarial, progress.learns) == (True, None)
    assert followed().main is None


# Records stand for the steps up to the next


def test_a_record_counts_for_the_steps_up_to_the_next() -> None:
    assert share_of_steps([], []) == 0.0
    assert share_of_steps([0], [True]) == 1.0
    assert share_of_steps([0, 1, 2, 10], [True, True, True, False]) == 10 / 18
    assert share_of_steps([0, 1, 2, 10], [False, False, False, True]) == 8 / 18


def test_what_holds_in_the_first_steps_only_is_a_small_share_of_a_long_run() -> None:
    """13 of 20 records, which are 13 of 800 steps."""
    steps = [*range(13), 20, 50, 100, 200, 400, 600, 700]
    assert 13 / len(steps) > 0.6
    assert share_of_steps(steps, [step < 13 for step in steps]) < 0.03


@given(lengths=st.lists(st.integers(1, 50), min_size=2, max_size=40), data=st.data())
def test_the_share_is_that_of_counting_every_step(lengths: list[int], data) -> None:
    steps = [sum(lengths[:i]) for i in range(len(lengths))]
    wrong = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
    spread = [
        is_wrong for is_wrong, n in zip(wrong, [*lengths[:-1], lengths[-2]], strict=True) for _ in range(n)
    ]
    assert share_of_steps(steps, wrong) == close(sum(spread) / len(spread))


@given(values=st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=30))
def test_a_lasting_state_is_the_last_unbroken_run_of_records(values) -> None:
    start = lasting(values, lambda value: value > 0.5)
    if start is None:
        assert sum(value is not None and value > 0.5 for value in values[-3:]) < 3
    else:
        assert all(value is not None and value > 0.5 for value in values[start:])
        assert len(values) - start >= 3
        assert start == 0 or values[start - 1] is None or values[start - 1] <= 0.5


# Evaluation


def evaluated(right: int, n: int, classes: int, loss: float = 0.0) -> str | None:
    one = criterion(
        is_training=False,
        classes=classes,
        label_entropy=math.log(classes),
        commonest_label=1 / classes,
        commonest_labels=(1 / classes,),
        step=(N,),
        value=(loss,),
        rows=(n,),
        accuracy=(right / n,),
    )
    return doubt(TrainingFacts(criteria=(criterion(), one)))


@given(seed=SEEDS, classes=st.sampled_from([2, 3, 10, 100]), n=st.sampled_from([50, 200, 1000]))
def test_the_accuracy_of_guessing_is_at_chance(seed: int, classes: int, n: int) -> None:
    draw = random.Random(seed)
    guesses = [sum(draw.randrange(classes) == 0 for _ in range(n)) for _ in range(20)]
    assert sum(evaluated(right, n, classes) is None for right in guesses) <= 4


@given(n=st.integers(1, 60), classes=st.sampled_from([2, 3, 10]), data=st.data())
def test_an_accuracy_is_at_chance_if_guessing_reaches_it_with_a_probability_of_one_percent(
    n: int, classes: int, data: st.DataObject
) -> None:
    right = data.draw(st.integers(0, n))
    share = Fraction(1, classes)
    reached = sum(math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(right, n + 1))
    assume(reached != Fraction(1, 100))  # where only rounding decides
    said = evaluated(right, n, classes)
    assert (said is not None) == (reached > Fraction(1, 100))
    if said is not None and right > n * share:
        told = float(said.partition("good in ")[2].split()[0])
        assert abs(told - 100 * float(reached)) <= 0.5 + 1e-9


def test_a_loss_that_rises_at_once_is_told_by_its_first_value_and_by_its_mean() -> None:
    values = [0.8, *([30.0, 20.0] * 5), *([1.2, 1.0] * 20)]
    course = course_of(loss(tuple(values)), ())
    assert course is not None
    assert course.began() == f"0.8 at the first step, {statistics.fmean(values[:5]):.3g} over the first steps"
    assert course.end == pytest.approx(statistics.fmean(values[-12:]))


@given(classes=st.sampled_from([2, 3, 10, 100]), share=st.floats(0.7, 1.0))
def test_an_accuracy_clearly_above_it_is_not(classes: int, share: float) -> None:
    assert evaluated(round(200 * share), 200, classes) is None


@given(loss=st.floats(0.01, 20), classes=st.sampled_from([2, 10, 1000]))
def test_a_loss_above_that_of_guessing_is_doubted_unless_the_accuracy_shows_that_it_learns(
    loss: float, classes: int
) -> None:
    said = evaluated(0, 200, classes, loss)
    assert said is not None
    assert ("the loss in evaluation" in said) == (loss > math.log(classes))
    assert evaluated(190, 200, classes, loss) is None
    if classes > 2:  # better than guessing, but far from right
        assert (evaluated(80, 200, classes, loss) is not None) == (loss > math.log(classes))


@pytest.mark.parametrize(
    ("ends", "is_doubted"), [((2.0, 3.5), True), ((3.9, 3.5), False), ((2.0, 2.9), False), ((3.5,), False)]
)
@pytest.mark.parametrize("classes", [None, 20])
def test_an_evaluation_that_has_risen_above_guessing_is_doubted(
    classes: int | None, ends: tuple[float, ...], is_doubted: bool
) -> None:
    """Numbers whose best constant costs 3, and 20 classes with weights, whose equal probabilities cost as much."""
    n, accuracy = len(ends), 0.1 if classes else None
    series = {"step": range(n), "value": ends, "rows": (200,) * n, "guessing": (3.0,) * n}
    one = criterion(is_training=False, classes=classes, accuracy=(accuracy,) * n, **series)
    said = doubt(TrainingFacts(criteria=(criterion(), replace(one, is_weighted=classes is not None))))
    assert (said is not None and "the loss in evaluation" in said) == is_doubted


def test_the_last_losses_are_those_of_the_last_quarter_of_the_steps():
    """The first 64 steps are all recorded, later ones more rarely."""
    steps = (*range(64), *range(64, 256, 9))
    falling = tuple(2.0 * 0.98**step for step in steps)
    course = course_of(ScalarSeries("SGD", steps, falling), ())
    late = [value for step, value in zip(steps, falling, strict=True) if step > 0.75 * steps[-1]]
    assert course.end == pytest.approx(sum(late) / len(late), rel=0.1)
    assert course.n == steps[-1] + 1


def test_the_loss_of_one_point_is_known_though_few_steps_are_recorded():
    """Of gradients that are accumulated, the sum of the losses would have to be compared."""
    models = (model(of_one_point=(0.3, 0.3, 0.3), steps_in_training=N // 4),)
    facts = replace(FACTS, models=models, optimizers=(stepping(ended=N - 1),))
    assert follow([loss()], (), facts).of_one_point == 0.3
    assert follow([loss()], (), replace(facts, backwards=4 * N)).of_one_point is None


@pytest.mark.parametrize(
    ("end", "directions", "is_collapsed"), [(-1, 0.01, 1), (-1, 0.5, 0), (-0.9, 0.01, 0)]
)
def test_a_similarity_that_all_samples_have(end, directions, is_collapsed):
    values = [-0.5, -0.7, -0.8, *[end] * 177]
    one = model(of_one_point=(-1.0,) * 3, outputs=(60, 0, 1.0, 1.0, 0.5, directions))
    about = {"models": (one,), "criteria": (), "optimizers": (stepping(ended=179),)}
    record = training(loss=(loss(values),), steps=180, **about)
    assert ("MS757" in [found.code for found in judged(record).findings]) == is_collapsed
