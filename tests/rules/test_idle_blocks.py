"""MS205: blocks of a trained model that hand on their input."""

import pytest
import torch
from torch import nn

import modelscope_cli as ms


class Block(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)
        self.scale, self.kind = nn.Parameter(torch.ones(16)), kind

    def forward(self, x):
        change = self.scale * self.b(torch.tanh(self.a(self.norm(x))))
        if self.kind == "in place":
            return x.add_(change)
        if self.kind == "rectified in place":  # its output equals the input that it has overwritten
            return torch.relu(x.add_(change.abs()))
        return (
            x + change
            if self.kind == "residual"
            else (torch.relu(x + change) if self.kind == "relu" else change)
        )


def network(kind, *, is_trained=True):
    torch.manual_seed(0)
    blocks = [Block(kind) for _ in range(4)]
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Sequential(*blocks), nn.Linear(16, 4)).eval()
    for block in blocks if is_trained else ():
        nn.init.normal_(block.norm.bias, std=0.1)
    return model


def found(model):
    record = ms.check(model, torch.randn(32, 16), select=["MS205", "MS302"])
    return [(one.code, one.layer, one.message) for one in record.findings]


@pytest.mark.parametrize("kind", ["residual", "relu"])
@pytest.mark.parametrize(("tensors", "scale", "within"), [
    *[(("b.weight", "b.bias"), 0.0, ""), (("b.weight", "b.bias"), 1e-4, " within")],
    *[(("scale",), 0.0, ""), (("scale",), 1e-4, " within")],
])  # fmt: skip
def test_blocks_that_change_nothing_are_one_finding(kind, tensors, scale, within):
    model = network(kind)
    for block in (model[2][1], model[2][3]):
        for name in tensors:
            block.get_parameter(name).data *= scale
    ((code, layer, message),) = found(model)
    assert (code, layer) == ("MS205", "2.1")
    assert message.startswith(f"this block changes nothing: its output is its input{within}")
    assert message.endswith("; also 2.3")


@pytest.mark.parametrize("kind", ["residual", "relu", "in place", "rectified in place", "none"])
def test_blocks_that_do_something_are_not_accused(kind):
    assert found(network(kind)) == []


def test_blocks_that_begin_at_zero_are_not_accused():
    model = network("residual", is_trained=False)
    for block in model[2]:
        nn.init.zeros_(block.scale)
    assert found(model) == []
