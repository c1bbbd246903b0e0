"""The arithmetic of attacks, on functions whose answers are known."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerance import assert_close, close

from modelscope_cli.analysis.attack.request import AttackRequest, make_request
from modelscope_cli.analysis.attack.search import BALLS, Goal, as_pixels, search, smallest
from modelscope_cli.errors import CannotRunError, UsageError

SHAPE = (1, 3, 6, 5)
METHODS, NORMS = st.sampled_from(["fgsm", "ifgsm", "pgd"]), st.sampled_from(["linf", "l2"])
SEEDS = st.integers(0, 10_000)


def asked(method="pgd", norm="linf", epsilon=None, **options):
    rest = {"steps": None, "target": None, "seed": 0}
    return make_request(method=method, norm=norm, epsilon=epsilon, **{**rest, **options})


def random_pixels(seed, low=0, high=256):
    return torch.randint(low, high, SHAPE, generator=torch.Generator().manual_seed(seed)) / 255


def linear(seed):
    """A score that is linear in the pixels against one that is constant, and its weights."""
    w = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return w, lambda pixels: torch.stack([(w * pixels).sum(), w.sum() / 2])[None]


def layered(seed):
    """A small network with three classes."""
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(n, m, generator=generator) / m**0.5 for n, m in [(16, 90), (3, 16)])
    return lambda pixels: (pixels.flatten(1) @ first.T).tanh() @ second.T


def goals(scores_of, pixels):
    predicted = int(scores_of(pixels).argmax())
    return Goal(predicted, is_targeted=False), Goal(1 - predicted, is_targeted=True)


def distance(norm, first, second):
    change = (first.double() - second.double()).flatten()
    return float(change.abs().max() if norm == "linf" else change.norm())


def points(scores_of, pixels, goal, request):
    """Return the pictures a search comes by, seen through what it asks of the model."""
    seen = []

    def watched(x):
        if x.requires_grad:
            seen.append(x.detach().clone())
        return scores_of(x)

    search(watched, pixels, goal, request)
    return seen


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("norm", "dual"), [("linf", lambda w: w.abs().sum()), ("l2", lambda w: w.norm())])
def test_one_step_changes_a_linear_score_by_epsilon_times_the_dual_norm(norm, dual, seed):
    w, scores_of = linear(seed)
    pixels = random_pixels(seed, 64, 192)  # nothing is clamped
    for goal in goals(scores_of, pixels):
        start, end = points(scores_of, pixels, goal, asked("fgsm", norm, "8/255"))
        assert torch.equal(start, pixels)
        falls = scores_of(pixels).argmax() == 0
        change = float((w.double() * (end - pixels).double()).sum())
        assert change == close(float(dual(w.double())) * 8 / 255 * (-1 if falls else 1))
        assert distance(norm, end, pixels) == close(8 / 255)
        if norm == "linf":  # every value, and exactly: both neighbours are float32 numbers
            sign = w.sign() * (-1 if falls else 1)
            assert torch.equal(end, (pixels + sign * (8 / 255)).float())


@given(seed=SEEDS, method=METHODS, norm=NORMS, levels=st.just(0.0) | st.floats(1e-9, 40), n=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_nothing_ever_leaves_the_ball_or_0_to_1(seed, method, norm, levels, n):
    epsilon = levels / 255 * (1 if norm == "linf" else 9)
    request = asked(method, norm, repr(epsilon), seed=seed, **({} if method == "fgsm" else {"steps": n}))
    scores_of, pixels = layered(seed), random_pixels(seed)
    for goal in goals(scores_of, pixels)[: 1 if int(scores_of(pixels).argmax()) == 2 else 2]:
        found = search(scores_of, pixels, goal, request)
        for point in (*points(scores_of, pixels, goal, request), found.pixels):
            assert 0 <= float(point.min()) <= float(point.max()) <= 1
            assert distance(norm, point, pixels) <= epsilon * (1 + 1e-5) + 2**-23
        # In 8 bits there is no rounding error to forgive.
        change = (found.levels.double() - (pixels * 255).round().double()).flatten()
        length = float(change.abs().max() if norm == "linf" else change.norm())
        assert length <= 255 * epsilon * (1 + 1e-9) + 1e-6


@given(seed=SEEDS, norm=NORMS, levels=st.floats(0.1, 30))
@settings(max_examples=60, deadline=None)
def test_rounding_is_the_nearest_where_that_is_inside_and_within_a_level_elsewhere(seed, norm, levels):
    pixels = random_pixels(seed)
    ball = BALLS[norm](pixels, levels / 255)
    point = ball.nearest(ball.random(torch.Generator().manual_seed(seed)))
    rounded = ball.rounded(point).double()
    plain = (point.double() * 255).round()
    center = (pixels.double() * 255).round()
    length = {"linf": lambda x: float(x.abs().max()), "l2": lambda x: float(x.norm())}[norm]
    assert length((rounded - center).flatten()) <= levels + 1e-6
    assert float((rounded - point.double() * 255).abs().max()) <= 1 + 1e-6
    if length((plain - center).flatten()) <= levels - 1e-6:
        assert torch.equal(rounded, plain)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_random_starts_fill_the_ball(norm):
    ball = BALLS[norm](torch.full((1, 1, 1, 2), 0.5), 0.25)
    generator = torch.Generator().manual_seed(0)
    starts = torch.cat([ball.random(generator).flatten(1) for _ in range(2000)]) - 0.5
    distances = starts.abs().amax(1) if norm == "linf" else starts.norm(dim=1)
    assert float(distances.max()) <= 0.25 + 1e-6
    # In two dimensions a quarter of an evenly filled ball lies within half of its radius.
    assert float((distances < 0.125).float().mean()) == pytest.approx(0.25, abs=0.03)
    assert starts.mean(0).abs().max() < 0.01


@pytest.mark.parametrize("scale", [1e-37, 1e-20, 1.0, 1e15])
def test_a_step_has_length_1_however_small_the_gradient(scale):
    gradient = random_pixels(1) - 0.5
    step = BALLS["l2"](gradient, 1).steepest(gradient * scale)
    assert_close(step, gradient / gradient.norm())


def test_it_stops_at_the_first_picture_that_lasts_and_counts_its_passes():
    w, _ = linear(5)
    pixels = random_pixels(5, 100, 150)
    rise = float(w.abs().sum()) / 255  # what a step of one level adds
    asks = []

    def scores_of(x):
        asks.append(x.requires_grad)
        return torch.stack([(w * (x - pixels)).sum(), x.new_tensor(2.5 * rise)])[None]

    found = search(scores_of, pixels, Goal(1, is_targeted=False), asked("ifgsm", epsilon="8/255", steps=8))
    assert (found.is_success, found.iterations, found.n_backward) == (True, 3, 3)
    assert asks == [True] * 4 + [False]  # and once more, in 8 bits
    assert found.n_forward == 5
    assert len(found.losses) == 1
    assert len(found.losses[0]) == 4


def test_a_success_that_rounding_undoes_does_not_stop_it():
    w, _ = linear(6)
    pixels = random_pixels(6, 100, 150)
    rise = float(w.abs().sum()) / 255
    scores_of = lambda x: torch.stack([(w * (x - pixels)).sum(), x.new_tensor(0.3 * rise)])[None]  # noqa: E731
    goal = Goal(1, is_targeted=False)
    found = search(scores_of, pixels, goal, asked("ifgsm", epsilon="8/255", steps=20))
    # 0.4 levels would do, but round to none; 0.8 round to one.
    assert (found.is_success, found.iterations) == (True, 2)
    assert goal.is_reached(scores_of(found.levels / 255))
    little = search(scores_of, pixels, goal, asked("ifgsm", epsilon="0.4/255", steps=4))
    assert little.is_success
    assert not goal.is_reached(scores_of(little.levels / 255))


def test_where_no_step_reaches_the_goal_the_best_is_kept():
    scores_of, pixels = layered(7), random_pixels(7)
    far = lambda x: scores_of(x) + 100 * torch.eye(3)[int(scores_of(pixels).argmax())]  # noqa: E731
    request, goal = asked(epsilon="4/255", steps=3), goals(far, pixels)[0]
    found = search(lambda x: far(x) / 50, pixels, goal, request)
    assert found.losses[0][found.iterations] == max(found.losses[0])
    assert (len(found.losses[0]), found.n_forward, found.n_backward) == (4, 4, 3)
    again = search(lambda x: far(x) / 50, pixels, goal, request)
    assert_close(again.pixels, found.pixels)


def test_a_gradient_of_exactly_zero_ends_a_run_and_is_counted():
    saturated = lambda x: torch.stack([1e4 + x.sum(), -x.sum()])[None]  # noqa: E731
    found = search(saturated, random_pixels(0), Goal(0, is_targeted=False), asked())
    assert (found.n_stuck, found.n_forward, found.n_backward) == (1, 1, 1)
    assert found.losses == ((0.0,),)
    # The other loss is not saturated.
    assert search(saturated, random_pixels(0), Goal(1, is_targeted=True), asked()).n_stuck == 0


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.flatten(1)[:, :2].clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("not today")


@pytest.mark.parametrize(("scores_of", "said"), [
    (lambda x: torch.stack([x.detach().sum(), x.detach().sum() * 0])[None], "no gradient flows from"),
    (lambda x: torch.stack([x.sum() * torch.nan, x.sum()])[None], "the loss is nan after 0 steps"),
    (lambda x: torch.stack([(x - x).sqrt().sum(), x.sum() * 0])[None], "has NaN or infinite values"),
    (Refusing.apply, "backward raised ValueError: not today"),
])  # fmt: skip
def test_functions_that_cannot_be_attacked(scores_of, said):
    with pytest.raises(CannotRunError, match=said):
        search(scores_of, random_pixels(0), Goal(0, is_targeted=False), asked())


def test_what_is_left_out_is_filled_in():
    assert asked("fgsm") == AttackRequest("fgsm", "linf", 8 / 255, 1, 8 / 255, is_smallest=True)
    assert asked("ifgsm") == AttackRequest("ifgsm", "linf", 8 / 255, 10, 8 / 255 / 10, is_smallest=True)
    within = asked("pgd", epsilon="8/255", steps=10)
    assert within == AttackRequest("pgd", "linf", 8 / 255, 10, 2.5 * 8 / 255 / 10)


@pytest.mark.parametrize(("options", "said", "hint"), [
    ({"epsilon": "8"}, "'--epsilon 8' is above 1", "--epsilon 8/255"),
    ({"epsilon": "-8/255"}, "'--epsilon -8/255' is negative", "--epsilon 8/255"),
    ({"epsilon": "8/0"}, "'--epsilon 8/0' is neither", "--epsilon 8/255"),
    ({"epsilon": "eight"}, "'--epsilon eight' is neither", "--epsilon 8/255"),
    ({"epsilon": "nan"}, "'--epsilon nan' is neither", "--epsilon 8/255"),
    ({"epsilon": "1e6", "norm": "l2"}, "'--epsilon 1e6' is above the largest possible change", "--epsilon 3"),
    ({"method": "fgsm", "steps": 5}, "'--steps 5' does not apply", "--method ifgsm"),
])  # fmt: skip
def test_requests_that_mean_nothing(options, said, hint):
    with pytest.raises(UsageError) as raised:
        asked(**options)
    assert said in raised.value.message
    assert raised.value.hint == hint


class TestSmallest:
    """The smallest change, where it is known: of a linear score its margin over the dual norm of its gradient."""

    @pytest.fixture(params=["linf", "l2"])
    def linear(self, request):
        generator = torch.Generator().manual_seed(3)
        weight = torch.randn(3 * 6 * 6, generator=generator)
        pixels = (
            torch.rand(1, 3, 6, 6, generator=generator) * 100 + 77
        ).round() / 255  # far from black and white
        margin = 0.02 * float(weight.abs().sum() if request.param == "linf" else weight.norm())
        offset = float(weight @ pixels.flatten()) - margin

        def scores_of(x):
            score = x.flatten(1) @ weight - offset
            return torch.stack([score, -score], 1)

        return request.param, scores_of, pixels

    @pytest.mark.parametrize("method", ["fgsm", "ifgsm", "pgd"])
    def test_of_a_linear_score(self, linear, method):
        norm, scores_of, pixels = linear
        found = smallest(scores_of, pixels, Goal(0, is_targeted=False), asked(method, norm))
        lengths = {"linf": lambda x: x.abs().max(), "l2": lambda x: x.norm()}
        length = float(lengths[norm](found.pixels - pixels))
        assert found.is_success
        assert 0.02 * (1 - 1e-4) <= length <= 0.02 * (1.25 if method == "fgsm" and norm == "l2" else 1.06)
        assert found.not_within < 0.02 * (1 + 1e-4) <= found.epsilon * (1 + 1e-3)
        file = as_pixels(found.levels, "cpu")
        assert scores_of(file).argmax() == 1
        assert float(lengths[norm](file - pixels)) <= (6.001 / 255 if norm == "linf" else 0.02 * 1.2)
        assert found.losses[found.best_run][found.iterations] == max(found.losses[found.best_run])
        assert sum(map(len, found.losses)) <= found.n_forward

    def test_of_a_model_that_cannot_be_fooled(self):
        pixels = torch.full((1, 3, 4, 4), 0.4)
        answer = lambda x: torch.stack([x.sum((1, 2, 3)) + 1, -x.sum((1, 2, 3))], 1)  # noqa: E731
        found = smallest(answer, pixels, Goal(0, is_targeted=False), asked("ifgsm", steps=2))
        assert (found.is_success, found.epsilon, found.not_within) == (False, 1.0, 1.0)
