"""A training beside one that was fine: the first difference is the cause, and another seed is none."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import modelscope_cli as ms
from modelscope_cli.rules.training.reference import compare_with

# What is wrong, and the link and the words of the first difference.
FAULTS = {
    "a rate": ({"lr": 1.0}, "optimizer", "learning rate"),
    "labels": ({"labels": 1}, "criterion", "targets"),
    "scale": ({"scale": 255.0}, "input", "input"),
    "softmax": ({"softmax": True}, "criterion", "input"),
    "never cleared": ({"clears": False}, "optimizer", "gradients of the step before"),
    "head only": ({"head_only": True}, "optimizer", "tensors held"),
}
# Labels that are moved by one class are, of other weights, labels like any other.
CASES = [(fault, seed) for fault in FAULTS for seed in (0, 7) if (fault, seed) != ("labels", 7)]


def run(seed=0, lr=0.1, labels=0, scale=1.0, softmax=False, clears=True, head_only=False):
    torch.manual_seed(seed)
    centres = torch.randn(4, 12, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 4))
    held = model[2].parameters() if head_only else model.parameters()
    optimizer = torch.optim.SGD(held, lr=lr)
    with ms.watch(model, optimizer) as watched:
        for _ in range(60):
            y = torch.randint(4, (32,))
            x = (centres[y] + torch.randn(32, 12)) * scale
            out = model(x)
            if clears:
                optimizer.zero_grad()
            loss = F.cross_entropy(out.softmax(1) if softmax else out, (y + labels) % 4)
            loss.backward()
            optimizer.step()
    return watched.record()


@pytest.fixture(scope="module")
def good():
    return run()


@pytest.mark.parametrize(("fault", "seed"), CASES)
def test_the_first_difference_is_the_cause(good, fault, seed):
    changed, link, words = FAULTS[fault]
    first = compare_with(run(seed, **changed), good, "good").deviations[0]
    assert (first.kind, words in first.where) == (link, True), first


def test_the_same_training_has_no_difference(good):
    compared = compare_with(run(0), good, "good")
    assert compared.deviations == ()
    assert compared.equal_steps == 60


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_another_seed_is_not_a_difference(good, seed):
    compared = compare_with(run(seed), good, "good")
    assert compared.deviations == ()
    assert compared.equal_steps == 0


def test_results_that_were_kept_are_compared_by_diff_too(good, tmp_path):
    for name, record in (("good", good), ("bad", run(7, lr=1.0))):
        (tmp_path / f"{name}.json").write_text(json.dumps(record.to_dict()))
    found = ms.diff(str(tmp_path / "good.json"), str(tmp_path / "bad.json"))
    first = found.compared.deviations[0]
    assert (first.kind, first.here, first.reference) == ("optimizer", "1", "0.1")
    assert "learning rate: 1; there 0.1" in str(found)
    assert found.to_dict()["compared"]["deviations"][0]["kind"] == "optimizer"
