"""What the graph of a hand-made loss shows: sums, shapes that were broadcast, signs, and nothing else."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributions import Categorical, Normal, kl_divergence
from torch.nn import functional as F

from modelscope_cli.hooks.torch_private import output_shape_of
from modelscope_cli.records.watch import POLICY
from modelscope_cli.watching.loss_graph import (
    broadcast_in,
    divergence_in,
    has_negative_part,
    has_weighted_likelihoods,
    shares_of_rows_in,
    summed_over,
    terms_from,
    wrong_factor,
)
from modelscope_cli.watching.loss_history import LossHistory

N = 12


def terms_of(loss):
    return terms_from(loss.grad_fn)


@pytest.fixture
def prediction():
    """(n, 1), as a linear layer with one output gives it."""
    torch.manual_seed(0)
    return torch.nn.Linear(3, 1)(torch.randn(N, 3))


TARGET = torch.linspace(0, 1, N)
SUMS = {
    "of all": (lambda p: (p - TARGET[:, None]).square().sum(), N),
    "of rows": (lambda p: (p - TARGET[:, None]).square().sum(1).sum(), N),
    "of one value": (lambda p: p.mean(0).sum(), 1),
    "with a dimension": (lambda p: p.square().sum(0).squeeze(), 1),
    "divided": (lambda p: p.square().sum() / N, 1),
    "a mean": (lambda p: p.square().mean(), 1),
    "of two losses": (lambda p: p.square().mean() + p.abs().mean(), 1),
    "of three parts": (lambda p: torch.stack([p.square().mean(), p.abs().mean(), p.mean()]).sum(), 1),
    "of torch's own criterion": (lambda p: F.mse_loss(p, TARGET[:, None]), 1),
    "without a graph": (lambda p: p.detach().sum(), 1),
    "a leaf": (lambda p: torch.ones((), requires_grad=True), 1),
}


@pytest.mark.parametrize("what", SUMS)
def test_over_how_many_values_a_loss_is_a_sum(prediction, what):
    make, n = SUMS[what]
    assert summed_over(make(prediction)) == n


BROADCAST = {
    "squares": lambda p: (p - TARGET).square().mean(),
    "the other way round": lambda p: (TARGET - p).square().mean(),
    "weighted": lambda p: (0.5 * ((p - TARGET) ** 2)).mean(),
    "with another term": lambda p: (p - TARGET).square().mean() + 0.1 * p.square().mean(),
    "by torch.rsub": lambda p: torch.rsub(p, TARGET).square().sum(),
}


@pytest.mark.parametrize("what", BROADCAST)
def test_a_column_against_a_row_is_reported(prediction, what):
    assert broadcast_in(BROADCAST[what](prediction)) == ((N, 1), (N, N))


HEALTHY = {
    "both columns": lambda p: (p - TARGET[:, None]).square().mean(),
    "a number": lambda p: (p - 0.5).square().mean(),
    "the mean": lambda p: (p - TARGET.mean()).square().mean(),
    "one sample": lambda p: (p[:1] - TARGET[:1]).square().mean(),
    "distances of all pairs": lambda p: (p - p.t()).square().mean(),
    "distances to another prediction": lambda p: (p - p.squeeze(1)).square().mean(),
    "several targets a sample": lambda p: (p - torch.zeros(N, 4)).square().mean(),
    "logits": lambda p: F.binary_cross_entropy_with_logits(p, TARGET[:, None]),
    "without a graph": lambda p: p.detach().sum(),
}


@pytest.mark.parametrize("what", HEALTHY)
def test_healthy_forms_are_silent(prediction, what):
    assert broadcast_in(HEALTHY[what](prediction)) is None


def test_a_loss_far_behind_its_difference_is_not_searched_for_ever(prediction):
    loss = (prediction - TARGET).square().mean()
    for _ in range(100):
        loss = loss * 1.0
    assert broadcast_in(loss) is None


LABELS = torch.arange(N) % 4


def picked(x):
    return x.log_softmax(1)[range(N), LABELS]


def zeros(x):
    return F.mse_loss(x, torch.zeros(N, 4))


MASK = (torch.arange(4 * N).reshape(N, 4) % 3 == 0).float()
GAIN = torch.linspace(-1, 1, N)


def dice(p, mask=MASK):
    return ((2 * (p * mask).sum(1) + 1) / (p.sum(1) + mask.sum(1) + 1)).mean()


def surrogates(x, gain=GAIN):
    ratio = (picked(x) + 1.4).exp()
    return ratio * gain, ratio.clamp(0.8, 1.2) * gain


def normal(x, prior=1.0):
    mean, log_variance = x.chunk(2, 1)
    prior = Normal(torch.zeros(2), torch.full((2,), prior))
    return kl_divergence(Normal(mean, (0.5 * log_variance).exp()), prior).sum(1).mean()


def by_log_variance(x):
    mean, log_variance = x.chunk(2, 1)
    return -0.5 * torch.mean(torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), 1))


def by_deviation(x):
    mean, deviation = x[:, :2], (0.5 * x[:, 2:]).exp()
    return 0.5 * (mean**2 + deviation**2 - 2 * deviation.log() - 1).sum(1).mean()


# name: (a loss of logits (n, 4), whether its steps make worse what they are to make better)
SIGNS = {
    "cross-entropy": (lambda x: F.cross_entropy(x, LABELS), False),
    "minus cross-entropy": (lambda x: -F.cross_entropy(x, LABELS), True),
    "times a negative number": (lambda x: -0.5 * F.cross_entropy(x, LABELS), True),
    "divided by a negative number": (lambda x: F.cross_entropy(x, LABELS) / -4, True),
    "minus twice": (lambda x: -1 * -F.cross_entropy(x, LABELS), False),
    "minus squares": (lambda x: -F.mse_loss(x, torch.zeros(N, 4)), True),
    "a likelihood by hand": (lambda x: -picked(x).mean(), False),
    "a likelihood without its minus": (lambda x: picked(x).mean(), True),
    "a reward": (lambda x: (picked(x) * torch.linspace(-1, 1, N)).mean(), False),
    "a critic": (lambda x: -x.mean(), False),
    "a Dice score": (lambda x: dice(x.sigmoid()), True),
    "one minus a Dice score": (lambda x: 1 - dice(x.sigmoid()), False),
    "its logarithm": (lambda x: -dice(x.sigmoid()).log(), False),
    "two Dice scores": (lambda x: dice(x.sigmoid()) + 0.5 * dice(x.softmax(1)), True),
    "two of them, subtracted": (lambda x: 1.5 - (dice(x.sigmoid()) + 0.5 * dice(x.softmax(1))), False),
    "a cosine": (lambda x: F.cosine_similarity(x, MASK + 1).mean(), True),
    "minus a cosine": (lambda x: 2 - 2 * F.cosine_similarity(x, MASK + 1).mean(), False),
    "a product of directions": (
        lambda x: (F.normalize(x, dim=1) * F.normalize(MASK + 1)).sum(1).mean(),
        True,
    ),
    "a cosine to another output": (lambda x: F.cosine_similarity(x, x.sin()).mean(), False),
    "cosines of both signs": (lambda x: dice(x.sigmoid()) - F.cosine_similarity(x, MASK + 1).mean(), False),
    "a weighted mean of costs": (lambda x: (x.sigmoid() * MASK).sum() / x.sigmoid().sum(), False),
    "costs by attention": (lambda x: (x.softmax(1) * MASK).sum(1).mean(), False),
    "PPO": (lambda x: -torch.min(*surrogates(x)).mean() + 0.5 * zeros(x), False),
    "PPO without its minus": (lambda x: torch.min(*surrogates(x)).mean() + 0.5 * zeros(x), False),
    "clipped values": (lambda x: torch.max(x**2, (x.clamp(-1, 1) - 1) ** 2).mean(), False),
    "KL": (lambda x: zeros(x) + 0.1 * by_log_variance(x), False),
    "KL subtracted": (lambda x: zeros(x) - 0.1 * by_log_variance(x), True),
    "KL from another policy subtracted": (lambda x: zeros(x) - normal(x, 2.0), False),
    "two returns, both negative": (lambda x: torch.stack([5 * picked(x)[0], 4 * picked(x)[1]]).sum(), False),
    "without a graph": (lambda x: -F.cross_entropy(x, LABELS).detach(), False),
}


@pytest.mark.parametrize("what", SIGNS)
def test_the_sign_of_what_is_to_be_small(what):
    torch.manual_seed(0)
    make, is_wrong = SIGNS[what]
    assert (wrong_factor(terms_of(make(torch.nn.Linear(3, 4)(torch.randn(N, 3))))) is not None) == is_wrong


@pytest.mark.parametrize("divergence", [normal, by_log_variance, by_deviation])
def test_the_divergence_is_that_of_torch(divergence):
    x = torch.nn.Linear(3, 4)(torch.randn(N, 3))
    assert float(divergence_in(terms_of(zeros(x) + 3 * divergence(x)))[1]) == pytest.approx(
        float(normal(x).detach()), rel=1e-5
    )
    assert divergence_in(terms_of(zeros(x))) is None


def gaussian(x):
    return Normal(x[:, :2], x[:, 2:].exp()).log_prob(torch.ones(N, 2)).sum(1)


LIKELIHOODS = {
    "softmax": picked,
    "a distribution": lambda x: Categorical(logits=x).log_prob(LABELS),
    "minus cross-entropy": lambda x: -F.cross_entropy(x, LABELS, reduction="none"),
    "Gaussian": gaussian,
    "Gaussian of a constant deviation": lambda x: Normal(x[:, :2], 0.5).log_prob(torch.ones(N, 2)).sum(1),
    "a ratio": lambda x: (picked(x) + 1).exp(),
}


@pytest.mark.parametrize("what", LIKELIHOODS)
def test_log_probabilities_that_have_weights(what):
    x = torch.nn.Linear(3, 4)(torch.randn(N, 3))
    other = 0.5 * zeros(x) - 0.01 * Categorical(logits=x).entropy().mean()
    assert has_weighted_likelihoods(terms_of(other - (LIKELIHOODS[what](x) * GAIN).mean()))
    assert not has_weighted_likelihoods(terms_of(zeros(x) - LIKELIHOODS[what](x).mean() / 2))


def test_single_log_probabilities_with_weights():
    x = torch.nn.Linear(3, 4)(torch.randn(N, 3))
    each = [
        -Categorical(logits=row).log_prob(label) * float(gain)
        for row, label, gain in zip(x, LABELS, GAIN, strict=True)
    ]
    assert has_weighted_likelihoods(terms_of(torch.stack(each).sum()))


@pytest.mark.parametrize("name", ["returns", "advantages", "weights", "adv"])
def test_a_policy_gradient_is_known_by_the_names_of_its_weights(name):
    x = torch.nn.Linear(3, 4)(torch.randn(N, 3))
    scope = {name: GAIN, "x": x, "picked": picked, "see": lambda loss: list(LossHistory().see(loss))}
    told = eval(compile(f"see(-(picked(x) * {name}).mean())", "train.py", "eval"), scope)
    assert (POLICY in [kind for kind, _ in told]) == (name not in ("weights", "adv"))


# name: (a loss of logits of several terms, whether one of them is subtracted)
TERMS = {
    "added": (lambda x: F.cross_entropy(x, LABELS) + 0.1 * zeros(x), False),
    "subtracted": (lambda x: F.cross_entropy(x, LABELS) - 0.1 * zeros(x), True),
    "with a negative weight": (lambda x: -1 * F.cross_entropy(x, LABELS) + zeros(x), True),
    "subtracted in brackets": (lambda x: x.square().mean() - (zeros(x) + F.cross_entropy(x, LABELS)), True),
    "subtracted twice": (lambda x: x.square().mean() - (x.mean() - zeros(x)), False),
    "a penalty subtracted": (lambda x: F.cross_entropy(x, LABELS) - x.softmax(1).square().mean(), False),
    "a shifted criterion": (lambda x: 1 + zeros(x), False),
    "only one": (lambda x: -zeros(x), False),
    "a learnt weight": (lambda x: x.mean() + torch.tensor(-1.0, requires_grad=True) * zeros(x), False),
    "without a graph": (lambda x: (x.mean() - zeros(x)).detach(), False),
}


@pytest.mark.parametrize("what", TERMS)
def test_a_criterion_that_is_subtracted(what):
    make, is_negative = TERMS[what]
    assert has_negative_part(terms_of(make(torch.nn.Linear(3, 4)(torch.randn(N, 3))))) == is_negative


def test_the_sign_of_a_number_minus_a_criterion():
    x = torch.nn.Linear(3, 4)(torch.randn(N, 3))
    assert wrong_factor(terms_of(1 - zeros(x))) == -1
    assert wrong_factor(terms_of(zeros(x) - 1)) is None


# The private door: what a node of the graph knows of its output.


@pytest.mark.parametrize(
    "node",
    [SimpleNamespace(), SimpleNamespace(_input_metadata=[]), SimpleNamespace(_input_metadata=[object()])],
)
def test_with_the_name_taken_away_it_tells_nothing(node):
    assert output_shape_of(node) is None


def test_without_the_factor_of_a_product_no_sign_is_claimed():
    node = SimpleNamespace(name=lambda: "MulBackward0", next_functions=[(SimpleNamespace(name=str), 0)])
    assert wrong_factor(terms_from(node)) is None


# In a training


def train(loss):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        loss(model(torch.randn(N, 3))).backward()
        optimizer.step()


def test_a_sum_is_noted_and_is_not_a_fault_by_itself(recorded):
    record = recorded(lambda: train(SUMS["of all"][0]))
    assert [event.kind for event in record.events] == ["summed"]
    assert record.findings == ()


def play(sign) -> None:
    """REINFORCE for a policy of one step."""
    policy = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    for _ in range(60):
        state = torch.randn(64, 4)
        chances = torch.distributions.Categorical(logits=policy(state))
        action = chances.sample()
        reward = (state[:, :3].argmax(1) == action).float()
        loss = sign * (chances.log_prob(action) * (reward - reward.mean())).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_loss_of_a_policy_is_not_judged(recorded, sign) -> None:
    record = recorded(lambda: play(sign))
    assert record.findings == ()
    assert POLICY in [one.kind for one in record.events]


@pytest.mark.parametrize(("weight", "is_collapsed"), [(50.0, True), (1e-3, False)])
def test_a_latent_that_tells_nothing(recorded, weight, is_collapsed) -> None:
    def script() -> None:
        encoder, decoder = torch.nn.Linear(6, 4), torch.nn.Linear(2, 6)
        optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.02)
        for _ in range(200):
            x = torch.randn(32, 2) @ torch.ones(2, 6).triu()
            mean, log_variance = encoder(x).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
            divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean()
            loss = (decoder(z) - x).square().sum(1).mean() + weight * divergence
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    record = recorded(script)
    assert ("MS757" in [one.code for one in record.findings]) == is_collapsed
    if is_collapsed:
        assert any(
            "the posterior equals the prior for every sample" in one.message for one in record.findings
        )


@pytest.mark.parametrize(("weight", "is_too_large"), [(30.0, True), (1e-4, False)])
def test_a_penalty_that_outweighs_the_data(recorded, weight, is_too_large) -> None:
    def script() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(300):
            x = torch.randn(32, 4)
            penalty = sum(p.square().sum() for p in model.parameters())
            loss = F.mse_loss(model(x), x[:, :1]) + weight * penalty
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    record = recorded(script)
    assert [one.code for one in record.findings][:1] == (["MS723"] if is_too_large else [])


def centred(x):
    return (x - x.mean(0)) / x.std(0)


# name: (features that depend on the other samples, the healthy form of it)
OVER_SAMPLES = {
    "a softmax": (lambda x: x.softmax(0), lambda x: x.softmax(1)),
    "a norm": (lambda x: F.normalize(x, dim=0), lambda x: F.normalize(x, dim=1)),
    "after an activation": (lambda x: F.normalize(x.relu(), dim=0), centred),
    "before an activation": (
        lambda x: F.normalize(x, dim=0).relu(),
        lambda x: F.batch_norm(x, None, None, training=True),
    ),
}


@pytest.mark.parametrize("what", OVER_SAMPLES)
def test_features_that_are_scaled_over_the_samples_before_a_layer(what):
    body, head = torch.nn.Linear(3, 8), torch.nn.Linear(8, 4)
    wrong, healthy = (
        F.cross_entropy(head(change(body(torch.randn(N, 3)))), LABELS) for change in OVER_SAMPLES[what]
    )
    assert "over dimension 0" in (shares_of_rows_in(wrong) or "")
    assert shares_of_rows_in(healthy) is None


def test_features_that_are_compared_over_the_samples_are_not_meant():
    """As the correlation of two views in Barlow Twins."""
    z = F.normalize(torch.nn.Linear(3, 8)(torch.randn(N, 3)), dim=0)
    assert shares_of_rows_in((z.T @ z - torch.eye(8)).square().sum()) is None
