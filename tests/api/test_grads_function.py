"""`ms.grads`: what the command gives, from Python, and the caller's module as it was."""

import pytest
import torch
from function_and_command import STAR, tiny_resnet

import modelscope_cli as ms
from modelscope_cli.errors import UsageError


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


def test_the_report_is_written_where_asked_and_nowhere_else(both, cwd):
    ms.grads(tiny_resnet(), STAR)
    assert list(cwd.iterdir()) == []
    record = ms.grads(tiny_resnet(), STAR, out="report")
    assert sorted(path.name for path in (cwd / "report").iterdir()) == sorted(record.files)
    with pytest.raises(UsageError, match="not empty"):
        ms.grads("nothing_of_the_kind", out="report")
    assert both.said() == ""
