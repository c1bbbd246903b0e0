"""Where two models differ everywhere, `diff` names the layer at which the difference grows most."""

import copy
import itertools

import pytest
import torch
from torch import nn

import modelscope_cli as ms
from modelscope_cli.report.diff.table import diff_sheet


def plain():
    widths = [3, 8, 8, 16, 16, 16]
    return nn.Sequential(
        *(one for a, b in itertools.pairwise(widths) for one in (nn.Conv2d(a, b, 3, padding=1), nn.ReLU())),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
    )


def normed():
    layers = [
        one
        for a, b in ((3, 8), (8, 8), (8, 16))
        for one in (nn.Conv2d(a, b, 3), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def noisy(weight, share):
    return weight + share * weight.std() * torch.randn_like(weight)


def rounded(weight, bits):
    scale = weight.abs().max() / (2 ** (bits - 1) - 1)
    return (weight / scale).round() * scale


CHANGES = {
    "noise": (lambda weight: noisy(weight, 0.003), lambda weight: noisy(weight, 0.3)),
    "bits": (lambda weight: rounded(weight, 10), lambda weight: rounded(weight, 3)),
    "another start": (lambda weight: noisy(weight, 0.003), torch.rand_like),
    "scale": (lambda weight: noisy(weight, 0.003), lambda weight: 1.2 * weight),
}


def facts_of(make, change, culprit):
    torch.manual_seed(0)
    a = make()
    b, (all_, one) = copy.deepcopy(a), CHANGES[change]
    weights = [module for module in b if isinstance(module, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for n, module in enumerate(weights):
            module.weight.copy_((one if n == culprit else all_)(module.weight))
    facts = dict(diff_sheet(ms.diff(a, b, torch.randn(4, 3, 20, 20))).facts)
    name = str([*b].index(weights[culprit])) if culprit is not None else ""
    return facts, name


@pytest.mark.parametrize("make", [plain, normed])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("culprit", [1, 2, -1])
def test_the_layer_that_differs_more_than_those_before_it_is_named(make, change, culprit):
    culprit %= 6 if make is plain else 4
    facts, name = facts_of(make, change, culprit)
    assert facts["largest jump"].startswith(f"{name}, relative L2 ")


@pytest.mark.parametrize("make", [plain, normed])
@pytest.mark.parametrize("culprit", [None, 0])
def test_a_difference_that_grows_evenly_or_is_there_from_the_first_layer_on_has_none(make, culprit):
    facts, _ = facts_of(make, "noise", culprit)
    assert facts["first divergence"].startswith("0, ")
    assert "largest jump" not in facts
