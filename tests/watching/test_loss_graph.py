"""What the graph of a hand-made loss shows: sums and shapes that were broadcast, and nothing else."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from modelscope_cli.hooks.torch_private import output_shape_of
from modelscope_cli.watching.loss_graph import broadcast_in, has_negative_part, has_wrong_sign, summed_over

N = 12


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
    "absolute": lambda p: (p - TARGET).abs().mean(),
    "weighted": lambda p: (0.5 * ((p - TARGET) ** 2)).mean(),
    "with another term": lambda p: (p - TARGET).square().mean() + 0.1 * p.square().mean(),
    "by torch.rsub": lambda p: torch.rsub(p, TARGET).square().sum(),
}


@pytest.mark.parametrize("what", BROADCAST)
def test_a_column_against_a_row_is_reported(prediction, what):
    assert broadcast_in(BROADCAST[what](prediction)) == ((N, 1), (N, N))


HEALTHY = {
    "both columns": lambda p: (p - TARGET[:, None]).square().mean(),
    "both rows": lambda p: (p.squeeze(1) - TARGET).square().mean(),
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


# name: (a loss of logits (n, 4), whether its steps make worse what they are to make better)
SIGNS = {
    "cross-entropy": (lambda x: F.cross_entropy(x, LABELS), False),
    "minus cross-entropy": (lambda x: -F.cross_entropy(x, LABELS), True),
    "minus a sum of it": (lambda x: -F.cross_entropy(x, LABELS, reduction="none").sum(), True),
    "times a negative number": (lambda x: -0.5 * F.cross_entropy(x, LABELS), True),
    "divided by a negative number": (lambda x: F.cross_entropy(x, LABELS) / -4, True),
    "minus twice": (lambda x: -1 * -F.cross_entropy(x, LABELS), False),
    "accumulated": (lambda x: F.cross_entropy(x, LABELS) / 4, False),
    "minus squares": (lambda x: -F.mse_loss(x, torch.zeros(N, 4)), True),
    "minus binary": (lambda x: -F.binary_cross_entropy_with_logits(x, torch.zeros(N, 4)), True),
    "a likelihood by hand": (lambda x: -picked(x).mean(), False),
    "a likelihood without its minus": (lambda x: picked(x).mean(), True),
    "a reward": (lambda x: (picked(x) * torch.linspace(-1, 1, N)).mean(), False),
    "a critic": (lambda x: -x.mean(), False),
    "two terms": (lambda x: F.cross_entropy(x, LABELS) - 0.1 * F.mse_loss(x, torch.zeros(N, 4)), False),
    "without a graph": (lambda x: -F.cross_entropy(x, LABELS).detach(), False),
}


@pytest.mark.parametrize("what", SIGNS)
def test_the_sign_of_what_is_to_be_small(what):
    torch.manual_seed(0)
    make, is_wrong = SIGNS[what]
    assert has_wrong_sign(make(torch.nn.Linear(3, 4)(torch.randn(N, 3)))) == is_wrong


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
    assert has_negative_part(make(torch.nn.Linear(3, 4)(torch.randn(N, 3)))) == is_negative


def test_the_sign_of_a_number_minus_a_criterion():
    x = torch.nn.Linear(3, 4)(torch.randn(N, 3))
    assert has_wrong_sign(1 - zeros(x))
    assert not has_wrong_sign(zeros(x) - 1)


# The private door: what a node of the graph knows of its output.


def test_a_node_tells_the_shape_of_its_output(prediction):
    assert output_shape_of(prediction.grad_fn) == (N, 1)
    assert output_shape_of((prediction - TARGET).grad_fn) == (N, N)
    assert output_shape_of(prediction.sum().grad_fn) == ()


@pytest.mark.parametrize(
    "node",
    [SimpleNamespace(), SimpleNamespace(_input_metadata=[]), SimpleNamespace(_input_metadata=[object()])],
)
def test_with_the_name_taken_away_it_tells_nothing(node):
    assert output_shape_of(node) is None


def test_without_shapes_nothing_is_claimed(prediction, monkeypatch):
    monkeypatch.setattr("modelscope_cli.watching.loss_graph.output_shape_of", lambda node: None)
    loss = (prediction - TARGET).square().sum()
    assert (summed_over(loss), broadcast_in(loss)) == (1, None)


def test_without_the_factor_of_a_product_no_sign_is_claimed():
    node = SimpleNamespace(name=lambda: "MulBackward0", next_functions=[(SimpleNamespace(), 0)])
    assert not has_wrong_sign(SimpleNamespace(grad_fn=node))


# In a training


def train(loss):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        loss(model(torch.randn(N, 3))).backward()
        optimizer.step()


def test_a_broadcast_is_an_error_with_its_line(recorded):
    record = recorded(lambda: train(BROADCAST["squares"]))
    (found,) = record.findings
    assert (found.code, found.severity) == ("MS724", "error")
    assert f"({N}, 1)" in found.message
    assert "test_loss_graph.py:" in found.message
    assert record.run.warnings == ()


def test_a_loss_with_the_wrong_sign_is_an_error_with_its_line(recorded):
    record = recorded(lambda: train(lambda p: -F.mse_loss(p, TARGET[:, None])))
    assert record.findings[0].code == "MS722"
    assert record.findings[0].severity == "error"


def test_one_of_two_criteria_with_the_wrong_sign_is_named(recorded):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def script(sign):
        for _ in range(30):
            x = torch.randn(16, 3)
            prediction = model(x)
            loss = 0.01 * prediction.square().sum(1).sqrt().mean() + 100
            loss = loss + sign * F.mse_loss(prediction, x.mean(1, keepdim=True).expand(-1, 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    (found,) = [one for one in recorded(lambda: script(-1)).findings if one.code == "MS722"]
    assert "mse_loss is subtracted from the loss, and rises from" in found.message
    assert "MS722" not in [one.code for one in recorded(lambda: script(1)).findings]


def test_a_sum_is_noted_and_is_not_a_fault_by_itself(recorded):
    record = recorded(lambda: train(SUMS["of all"][0]))
    assert [event.kind for event in record.events] == ["summed"]
    assert record.findings == ()
