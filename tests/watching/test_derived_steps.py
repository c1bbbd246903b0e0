"""Steps by what torch.autograd.grad or torch.func.grad returns, and tensors that belong to no module."""

import pytest
import torch
from tolerance import close
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from modelscope_cli.records.watch import FAULT, LEARNING, SOUND, UNKNOWN

STEPS, LR = 80, 0.1


def batches():
    """Yield inputs and targets of a linear function."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 1, generator=generator)
    for _ in range(STEPS):
        x = torch.randn(32, 6, generator=generator)
        yield x, x @ weight


def fresh(*shape):
    return (0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(1))).requires_grad_()


def squared(prediction, target):
    return (prediction - target).square().mean()


def a_list_in_place():
    weights = [fresh(6, 1), torch.zeros(1, requires_grad=True)]
    for x, y in batches():
        gradients = torch.autograd.grad(squared(x @ weights[0] + weights[1], y), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(LR * gradient)


def a_dict_that_is_bound_again():
    weights = {"weight": fresh(6, 1), "bias": torch.zeros(1, requires_grad=True)}
    for x, y in batches():
        gradients = torch.autograd.grad(
            squared(x @ weights["weight"] + weights["bias"], y), list(weights.values())
        )
        weights = {
            name: (weight - LR * gradient).detach().requires_grad_()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }


def a_functional_call():
    model = nn.Linear(6, 1)
    weights = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    for x, y in batches():
        gradients = torch.autograd.grad(
            squared(functional_call(model, weights, (x,)), y), list(weights.values())
        )
        weights = {
            name: (weight - LR * gradient).detach().requires_grad_()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }


def a_transform():
    model = nn.Linear(6, 1)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    slope = torch.func.grad(lambda weights, x, y: squared(functional_call(model, weights, (x,)), y))
    for x, y in batches():
        gradients = slope(weights, x, y)
        weights = {name: weight - LR * gradients[name] for name, weight in weights.items()}


def the_parameters_of_a_module():
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    for x, y in batches():
        gradients = torch.autograd.grad(squared(model(x), y), list(model.parameters()))
        with torch.no_grad():
            for weight, gradient in zip(model.parameters(), gradients, strict=True):
                weight.sub_(LR * gradient)


TRAININGS = (
    a_list_in_place,
    a_dict_that_is_bound_again,
    a_functional_call,
    a_transform,
    the_parameters_of_a_module,
)


@pytest.mark.parametrize("train", TRAININGS)
def test_updates_by_derivatives_are_steps_and_are_judged(recorded, train):
    record = recorded(train)
    assert (record.findings, record.verdict) == ((), LEARNING)
    assert STEPS - 4 <= record.steps <= STEPS  # a new tensor that differs much from the last may be data


def test_what_a_transform_returns_is_the_same_and_nothing_is_left_in_place(recorded):
    x, y = next(batches())
    weight = fresh(6, 1).detach()

    def loss(weight, x):
        return squared(x @ weight, y), x

    before = torch.func.grad, torch.func.grad_and_value
    found = []

    def compute():
        found.append(torch.func.grad(lambda w: loss(w, x)[0])(weight))
        found.extend(torch.func.grad(loss, has_aux=True)(weight, x))
        found.extend(torch.func.grad_and_value(loss, has_aux=True)(weight, x))
        found.extend(torch.func.vmap(torch.func.grad(lambda w, x: (x @ w).sum()), (None, 0))(weight, x[:2]))

    recorded(compute)
    ours, found = found, []
    compute()
    assert torch.equal(ours[0], found[0])
    assert torch.equal(ours[0], ours[1])
    assert ours[2] is x
    assert torch.equal(ours[3], found[3])
    assert ours[4][0] == close(float(found[4][0]))
    assert all(map(torch.equal, ours[5:], found[5:]))
    assert (torch.func.grad, torch.func.grad_and_value) == before
    assert weight.grad is None


def test_an_attack_by_the_gradient_of_the_input_is_not_a_step(recorded):
    model = nn.Linear(6, 3)

    def attack():
        for x, _ in batches():
            x.requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(x), torch.zeros(32, dtype=torch.long)), [x])
            model(x + 0.1 * slope.sign())

    record = recorded(attack)
    assert (record.steps, record.verdict) == (0, UNKNOWN)


def ascent(kind):
    """Train a classifier, then a perturbation of its inputs that makes the loss rise."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    shift = torch.zeros(1, 6, requires_grad=True)
    attacker = torch.optim.SGD([shift], 1.0, maximize=kind == "maximize")
    sign = 1 if kind == "maximize" else -1
    data = [(x, (x[:, :3]).argmax(1)) for x, _ in batches()]
    for x, y in data * 2 if kind != "in turn" else ():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    for x, y in data:
        if kind == "in turn":
            optimizer.zero_grad()
            F.cross_entropy(model(x + 0.01 * shift.detach().sign()), y).backward()
            optimizer.step()
        attacker.zero_grad()
        (sign * F.cross_entropy(model(x + shift), y)).backward()
        attacker.step()


@pytest.mark.parametrize("kind", ["afterwards", "maximize", "in turn"])
def test_what_belongs_to_no_module_may_ascend(recorded, kind):
    record = recorded(lambda: ascent(kind))
    assert (record.findings, record.verdict) == ((), SOUND)
    assert [one.is_loose for one in record.facts.optimizers] == [False, True]


def test_a_model_that_ascends_is_still_a_fault(recorded):
    def train():
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, _ in batches():
            optimizer.zero_grad()
            (-F.cross_entropy(model(x), x[:, :3].argmax(1))).backward()
            optimizer.step()

    record = recorded(train)
    assert (record.verdict, record.findings[0].code) == (FAULT, "MS722")
