"""One definition of vanishing gradients, which healthy untrained networks do not have."""

import copy
import math

import numpy as np
import pytest
import torch

import modelscope_cli as ms
from modelscope_cli.records.grads import EXPLODING, VANISHING, mark
from modelscope_cli.records.stats import LARGE_SCORES
from modelscope_cli.rules.registry import find_rule


def test_grads_and_check_have_the_same_numbers():
    assert find_rule("vanishing-gradients", "").threshold == VANISHING
    assert find_rule("exploding-gradients", "").threshold == EXPLODING


@pytest.mark.parametrize(("norm", "reference", "marked"), [
    *[(0.0, 1.0, "zero"), (0.0, 0.0, ""), (1.0, 1.0, ""), (1.0, 0.0, ""), (1.0, math.inf, "")],
    *[(9e-8, 1.0, "vanishing"), (9e-8, 0.1, ""), (1.2e5, 1.41, ""), (9e5, 1.0, ""), (2e6, 1.0, "exploding")],
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
        assert marks.isdisjoint({"vanishing", "exploding", "non-finite"})


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
    assert "fresh_batch_norms" in [notice.code for notice in record.run.warnings]
    assert {"vanishing", "zero"} & {row.mark for row in ms.grads(normed, x, mode="train").parameters}


class Sure(torch.nn.Module):
    """Scores of two classes for each image: the margin is the image's first value."""

    def forward(self, x):
        margin = x[:, 0, 0, 0]
        return torch.stack([margin, torch.zeros_like(margin)], 1).requires_grad_()


# Margins of the images; of a saturated one the loss rounds to zero.
@pytest.mark.parametrize(
    "margins", [[10.0], [10.0, 11.0], [8.0, 40.0], [40.0, 8.0, 40.0, 12.0], [3.0, 40.0], [1.5]]
)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_tiny_loss_is_told_of_one_image_and_of_several(margins, batch):
    x = torch.zeros(len(margins), 3, 4, 4)
    x[:, 0, 0, 0] = torch.tensor(margins)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1, bias=False), Sure())
    net[0].weight.data = torch.eye(3)[..., None, None]
    record = ms.grads(net, x, batch=batch)
    loss = np.mean(np.log1p(np.exp(-np.array(margins))))
    assert record.loss.value == pytest.approx(loss, rel=1e-4, abs=1e-6)
    told = [one.code for one in record.run.warnings]
    assert told == ["tiny_loss"] * bool(loss < 1e-3)
    assert ms.grads(net, x, batch=batch, target=1).run.warnings == ()


def plain(gain, depth, norm=False):
    torch.manual_seed(0)
    layers = [torch.nn.Flatten()]
    for at in range(depth):
        layers += [
            torch.nn.Linear(32 if at else 48, 32),
            torch.nn.BatchNorm1d(32) if norm else torch.nn.Identity(),
        ]
        layers += [torch.nn.ReLU()]
    for layer in layers[1::3]:
        torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        layer.weight.data *= gain
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, 10))


def fails(net, steps=60):
    """Train a copy: tell whether its loss is not finite, or above chance at the end."""
    net, draw = copy.deepcopy(net).train(), torch.Generator().manual_seed(0)
    centres = torch.randn(10, 3, 4, 4, generator=draw)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        labels = torch.randint(10, (32,), generator=draw)
        x = centres[labels] + 0.3 * torch.randn(32, 3, 4, 4, generator=draw)
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return not float(loss.detach()) < math.log(10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gain", "depth"), [(1.0, 4), (1.0, 12), (1.2, 6), (2.0, 8), (1.7, 12), (3.0, 8), (2.0, 24)]
)
@pytest.mark.parametrize("norm", [False, True])
def test_large_scores_are_told_where_a_training_fails_by_them(gain, depth, norm):
    net = plain(gain, depth, norm)
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    found = [one for one in ms.check(net, x).findings if one.code == "MS206"]
    assert bool(found) is fails(net) is (gain > 1.2 and not norm)
    for function in (ms.stats, ms.grads):
        told = [one.code for one in function(net, x, mode="train", batch=8).run.warnings]
        assert ("large_scores" in told) is bool(found)
    with torch.no_grad():
        expected = float(net.train()(x).double().std(1, correction=0).square().mean().sqrt())
    assert not found or found[0].value == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("at", [1, 4, 7])
def test_the_layer_whose_weights_are_far_too_large_is_named_also_if_it_is_the_first(at):
    net = plain(1.0, 3)
    net[at].weight.data *= 300
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    (found,) = (one for one in ms.check(net, x, select="MS206").findings)
    assert (found.layer, "the input of 1" in found.message) == (str(at), True)


def test_scores_that_foreign_statistics_make_large_are_no_sign_of_the_initialisation():
    net = plain(1.0, 24, norm=True)  # whose gradients grow by a factor of ten in each block
    for norm in net:
        if isinstance(norm, torch.nn.BatchNorm1d):
            norm.running_var.fill_(0.01)
    x = torch.randn(8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    assert float(net.eval()(x).detach().std()) > LARGE_SCORES
    codes = {one.code for one in ms.check(net, x).findings}
    assert "MS208" in codes
    assert codes.isdisjoint({"MS206", "MS303"})
    told = [one.code for function in (ms.stats, ms.grads) for one in function(net, x).run.warnings]
    assert "large_scores" not in told
