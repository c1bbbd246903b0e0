"""One definition of vanishing gradients, which healthy untrained networks do not have."""

import math

import pytest
import torch

import modelscope_cli as ms
from modelscope_cli.records.grads import EXPLODING, VANISHING, GradThresholds, mark
from modelscope_cli.report.registry import view_of
from modelscope_cli.rules.registry import find_rule


def test_grads_and_check_have_the_same_numbers():
    assert GradThresholds().vanishing == VANISHING
    assert find_rule("vanishing-gradients", "").threshold == VANISHING
    assert find_rule("exploding-gradients", "").threshold == EXPLODING


@pytest.mark.parametrize(("norm", "reference", "marked"), [
    *[(0.0, 1.0, "zero"), (0.0, 0.0, "zero"), (1.0, 1.0, ""), (1.0, 0.0, ""), (1.0, math.inf, "")],
    *[(9e-8, 1.0, "vanishing"), (9e-8, 0.1, ""), (1.2e5, 1.41, ""), (2e6, 1.0, "")],
])  # fmt: skip
def test_a_gradient_is_held_against_the_one_at_the_output(norm, reference, marked):
    assert mark(norm, reference) == marked


@pytest.mark.parametrize("name", ["resnet34", "resnet152", "vgg16", "vit_b_16", "efficientnet_b0"])
@pytest.mark.slow
def test_the_gradients_of_healthy_untrained_networks_do_not_vanish(name):
    model_arg = ("image_size=64",) if name.startswith("vit") else ()
    model = ms.load(name, weights="none", model_arg=model_arg, device="cpu")
    for mode in ("auto", "train"):
        record = ms.grads(model, input_shape=(2, 3, 64, 64), mode=mode)
        marks = {row.mark for row in (*record.parameters, *record.activations)}
        assert marks.isdisjoint({"vanishing", "non-finite"})


def test_the_norm_is_told_in_multiples_of_that_at_the_output():
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    record = ms.grads(net, torch.randn(2, 4), target=1)
    totals = record.totals
    times = f"{totals.grad_norm / totals.output_grad_norm:.3g} times that at the output"
    assert times in view_of(record).headline(record)


def test_in_eval_mode_fresh_batch_norms_excuse_and_say_so():
    torch.manual_seed(0)
    halving = [torch.nn.Linear(4, 4) for _ in range(12)]
    for layer in halving:
        layer.weight.data.mul_(0.01)
    plain, normed = torch.nn.Sequential(*halving), torch.nn.Sequential(*halving, torch.nn.BatchNorm1d(4))
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    # How small it gets, and whether that is 0, is the affair of the kernels.
    assert {"vanishing", "zero"} & {row.mark for row in ms.grads(plain, x).parameters}
    record = ms.grads(normed, x, mode="eval")
    assert "vanishing" not in {row.mark for row in record.parameters}
    assert [notice.code for notice in record.run.warnings] == ["fresh_batch_norms"]
    assert {"vanishing", "zero"} & {row.mark for row in ms.grads(normed, x, mode="train").parameters}
