"""`ms.grads`: what the command gives, from Python, and the caller's module as it was."""

import pytest
import torch
from function_and_command import tiny_resnet

import modelscope_cli as ms


def test_a_loss_of_the_callers_own():
    def half(output):
        return output.sum() / 2

    x = torch.rand(3, 3, 64, 64)
    record = ms.grads(tiny_resnet(), x, loss=half, batch=3)
    model = tiny_resnet()
    (model(x).sum() / 2).backward()
    assert record.loss.name == "half"
    assert {row.name: row.grad_norm for row in record.parameters} == pytest.approx(
        {name: float(p.grad.norm()) for name, p in model.named_parameters()}, rel=1e-4
    )
