"""The series of a training against the same figures computed by hand."""

import pytest
import torch
import torch.nn.functional as F
from tolerance import A_NETWORK, close
from torch import nn

import modelscope_cli


def tiny():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(6 * 36, 4))
    with torch.no_grad():
        model[0].bias[:2] = -100.0  # two dead channels
    generator = torch.Generator().manual_seed(4)
    batches = [(torch.randn(5, 3, 8, 8, generator=generator), torch.arange(5) % 4) for _ in range(6)]
    return model, batches


def record(every):
    model, batches = tiny()
    return modelscope_cli.train(model, batches, steps=6, lr=0.05, every=every).training


def by_hand():
    """The same training in a plain loop, looking at every step."""
    model, batches = tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for inputs, targets in batches:
        conv = F.conv2d(inputs, model[0].weight, model[0].bias)
        conv.retain_grad()
        relu = conv.relu()
        loss = F.cross_entropy(model[3](relu.flatten(1)), targets)
        optimizer.zero_grad()
        loss.backward()
        weight = model[3].weight.detach().clone()
        optimizer.step()
        yield {
            "loss": loss.item(),
            "conv_mean": conv.mean().item(),
            "conv_std": conv.std(unbiased=False).item(),
            "conv_grad": conv.grad.norm().item(),
            "near": (conv.abs() < 0.05).float().mean().item(),
            "zero": (relu == 0).float().mean().item(),
            "grad": model[3].weight.grad.norm().item(),
            "norm": weight.norm().item(),
            "ratio": ((model[3].weight.detach() - weight).norm() / weight.norm()).item(),
        }


@pytest.mark.parametrize("every", [1, 2, 4])
def test_curves_are_what_a_plain_loop_computes(every):
    training = record(every)
    truth = list(by_hand())
    assert training.loss[0].value == close([row["loss"] for row in truth])
    assert training.lr[0].value == (0.05,) * 6
    conv, relu, flat, linear = training.layers
    assert [row.name for row in (conv, relu, flat, linear)] == ["0", "1", "2", "3"]
    looked = truth[::every]

    def compare(curve, key):
        assert list(curve) == close([row[key] for row in looked], A_NETWORK, scale=0.001)

    assert conv.series.step == tuple(range(0, 6, every))
    compare(conv.series.mean, "conv_mean")  # not of what the in-place ReLU makes of it
    compare(conv.series.std, "conv_std")
    compare(conv.series.grad_norm, "conv_grad")
    compare(conv.series.near_zero_fraction, "near")
    compare(relu.series.zero_fraction, "zero")
    assert set(relu.series.dead_fraction) == {2 / 6}
    assert conv.series.dead_fraction is None  # told of rectifiers
    weight = next(row for row in training.parameters if row.name == "3.weight")
    compare(weight.series.grad_norm, "grad")
    compare(weight.series.weight_norm, "norm")
    compare(weight.series.update_ratio, "ratio")
