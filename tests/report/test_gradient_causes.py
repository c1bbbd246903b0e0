"""The line under a table of gradients says where a gradient stops, if it is certain."""

import re

import pytest
import torch
from torch import Tensor, nn

import modelscope_cli as ms
from modelscope_cli.report.registry import view_of


class Net(nn.Module):
    def __init__(self, between, *, bias: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)
        self.second = nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8, 4, bias=False)
        nn.init.constant_(self.second.bias, bias)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.between(self.first(x))).relu()
        return self.head(x.mean((2, 3)))


def facts_of(model: nn.Module, seed: int) -> dict[str, str]:
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    record = ms.grads(model, x)
    return dict(view_of(record).sheet(record).facts)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("between", "bias", "mark", "words"), [
    (torch.relu, -1000.0, "zero", "the input of head is zero"),
    (torch.zeros_like, 0.0, "unused", "first runs, but the loss does not depend on it"),
    (lambda x: x.detach().relu(), 0.0, "unused", "first runs, but the loss does not depend on it"),
    (lambda x: x * 0.0, 1.0, "zero", "the input of second is zero"),
])  # fmt: skip
def test_where_a_gradient_stops(between, bias, mark, words, seed):
    torch.manual_seed(seed)
    facts = facts_of(Net(between, bias=bias), seed)
    assert words in facts[mark], facts


@pytest.mark.parametrize("layer", ["head", "second"])
def test_a_layer_of_zeros_is_the_answer_where_it_keeps_all_gradients_from_the_others(layer):
    model = Net(torch.relu)
    nn.init.zeros_(model.get_submodule(layer).weight)
    nn.init.ones_(model.second.bias)
    facts = facts_of(model, 0)
    assert facts["answer"].startswith(f"the weights of {layer} are zero, so no gradient reaches")
    assert "zero" not in facts


def test_a_branch_of_zeros_beside_others_is_not_taken_for_the_end():
    model = Net(lambda x: x.relu() + model.beside(model.inner(x).relu()))
    model.inner, model.beside = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)
    nn.init.zeros_(model.beside.weight)
    assert facts_of(model, 0)["answer"] == "of 9 parameter gradients, 2 zero"


@pytest.mark.parametrize("depth", [8, 12])
def test_of_a_net_that_explodes_the_first_sentence_says_so(depth):
    torch.manual_seed(depth)
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(depth)]
    model = nn.Sequential(nn.Conv2d(3, 8, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    for one in model.modules():
        if isinstance(one, nn.Conv2d):
            nn.init.normal_(one.weight)
    record = ms.grads(model, torch.randn(1, 3, 8, 8))
    assert {row.mark for row in record.parameters} == {""}  # the loss has no gradient: no layer is at fault
    facts = dict(view_of(record).sheet(record).facts)
    predicted = record.loss.classes[0]
    other = int(not predicted)
    assert facts["answer"].endswith(
        f"is zero or not finite, as the output explodes; --target {other} has one"
    )
    seen = ms.grads(model, torch.randn(1, 3, 8, 8), target=other)
    assert (
        "exploding" in (result := dict(view_of(seen).sheet(seen).facts)["answer"]) or "times that" in result
    )
    assert record.run.warnings[0].message.startswith("the output explodes")
    assert view_of(record).headline(record).startswith("the output explodes")


def test_gradients_behind_scores_that_explode_a_little_are_not_said_to_be_fine():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4)
    )
    nn.init.normal_(model[0].weight, std=300.0)
    record = ms.grads(model, torch.randn(2, 3, 8, 8), target=1)
    answer = dict(view_of(record).sheet(record).facts)["answer"]
    assert answer == "the output explodes, so gradients were not judged: modelscope check names the layer"


def test_parameters_that_the_module_around_their_list_uses_are_not_of_a_layer_that_is_never_called():
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = nn.ParameterList([torch.ones(3, 1, 1), torch.ones(3, 1, 1)])
            self.head = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x * self.scales[0] + (x * self.scales[1]).detach()).mean((2, 3)))

    record = ms.grads(Listed(), torch.randn(2, 3, 8, 8))
    problems = {row.name: row.problem for row in record.parameters}
    assert problems == {
        "scales.0": None, "scales.1": "no gradient", "head.weight": None, "head.bias": None
    }  # fmt: skip


def facts_on_noise(model):
    record = ms.grads(model, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    return dict(view_of(record).sheet(record).facts)


def chain(kind, n=5):
    torch.manual_seed(0)
    inner = [one for _ in range(n) for one in (nn.Linear(64, 64), kind())]
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), kind(), *inner, nn.Linear(64, 4))
    if kind is nn.ReLU:
        for one in model:
            if isinstance(one, nn.Linear):
                nn.init.kaiming_normal_(one.weight)
    return model


@pytest.mark.parametrize("at", [1, 3, 13])
def test_a_weight_far_larger_than_the_others_is_named(at):
    model = chain(nn.ReLU)
    assert "too large" not in facts_on_noise(model)["answer"]
    model[at].weight.data *= 300
    assert f"{at}.weight is far too large: it multiplies a signal by " in facts_on_noise(model)["answer"]


@pytest.mark.parametrize(
    ("at", "change", "words"),
    [
        (5, lambda one: nn.init.constant_(one.bias, -100.0), "the output of 6 (ReLU) is zero"),
        (5, lambda one: nn.init.zeros_(one.weight), "the weights of 5 are zero"),
    ],
)
def test_the_dead_layer_is_named_and_not_those_after_it(at, change, words):
    model = chain(nn.ReLU)
    change(model[at])
    facts = facts_on_noise(model)
    told = facts.get("zero", facts["answer"])
    assert words in told
    assert "input of" not in told


@pytest.mark.parametrize(("kind", "n", "falls"), [
    *[(nn.Sigmoid, 4, True), (nn.Sigmoid, 12, True)],
    *[(nn.Sigmoid, 1, False), (nn.Tanh, 6, False), (nn.ReLU, 6, False)],
])  # fmt: skip
def test_a_gradient_that_falls_steeply_from_layer_to_layer_is_told(kind, n, falls):
    model = chain(kind, n)
    answer = facts_on_noise(model)["answer"]
    ends = re.search(r"; \|g\| falls [\d.e+]+x from (\d+) to 1, about [\d.]+x a layer", answer)
    assert (ends is not None and int(ends[1]) == len(model) - 1) is falls
    assert ("no zero, vanishing" not in answer) is falls


@pytest.mark.parametrize(("kind", "n", "is_lost"), [
    *[(nn.Sigmoid, 7, True), (nn.Sigmoid, 1, False), (nn.Tanh, 12, False), (nn.ReLU, 12, False)],
])  # fmt: skip
def test_check_warns_of_a_gradient_that_falls_evenly_over_many_layers(kind, n, is_lost):
    findings = ms.check(chain(kind, n), torch.randn(4, 3, 8, 8), select="MS302").findings
    assert [one.layer for one in findings] == ["1"] * is_lost
    assert all(" to 1, about " in one.message for one in findings)


def test_a_layer_that_is_not_called_is_named_and_nothing_is_said_of_a_frozen_one():
    model = Net(torch.relu)
    model.spare = nn.Linear(2, 2)
    model.first.requires_grad_(False)
    facts = facts_of(model, 0)
    assert facts["unused"] == "2 of 7 gradients: spare is never called"
    assert "zero" not in facts


def _deep(n, activation, width=32, scale=1.0):
    layers = [nn.Flatten(), nn.Linear(192, width), activation()]
    for _ in range(n):
        layers += [nn.Linear(width, width), activation()]
    model = nn.Sequential(*layers, nn.Linear(width, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    return model


@pytest.mark.parametrize("clip", [{}, {"clip": 1e-3}, {"clip_norm": 1.0}])
@pytest.mark.parametrize(
    ("activation", "scale", "mark"), [(nn.Sigmoid, 1, "vanishing"), (nn.ReLU, 8, "exploding")]
)
def test_marks_and_factors_are_of_gradients_before_clipping(activation, scale, mark, clip):
    torch.manual_seed(0)
    model, x = _deep(12, activation, scale=scale), torch.randn(4, 3, 8, 8)
    plain, record = (ms.grads(model, x, target=0, **how) for how in ({}, clip))
    facts, before = (dict(view_of(one).sheet(one).facts)[mark] for one in (record, plain))
    assert facts.replace(" before clipping", "").removesuffix(" or --clip-norm 1") == before.removesuffix(
        " or --clip-norm 1"
    )
    assert (" before clipping" in facts) == bool(clip)
    last = [row.name for row in record.parameters if row.mark == mark][-1]
    assert f"from {last} towards the input" in facts
    assert "a norm after each layer" in facts
    assert ("ReLU in place" in facts) == (activation is nn.Sigmoid)
    answers = [view_of(one).answer(one).replace(" before clipping", "") for one in (record, plain)]
    assert answers[0] == answers[1]


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))).relu()


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("is_trained", [True, False])
def test_the_norm_is_named_that_makes_a_branch_add_a_constant(is_trained, at):
    torch.manual_seed(0)
    blocks = nn.Sequential(*[Branch() for _ in range(3)])
    model = nn.Sequential(nn.Conv2d(3, 8, 1), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    nn.init.zeros_(blocks[at].bn2.weight)
    if is_trained:
        nn.init.constant_(blocks[at].bn2.bias, 0.3)
        model(torch.randn(16, 3, 8, 8))
    found = [one for one in ms.check(model, torch.randn(4, 3, 8, 8)).findings if one.code == "MS302"]
    cause = f"1.{at}.conv2.weight and 1 earlier layer are exactly zero: the weights of 1.{at}.bn2 are zero"
    assert [one.message for one in found] == [f"the gradients of {cause}"] * is_trained
    assert not found or found[0].layer == f"1.{at}.conv2"
