"""What clipping promises, against hooks written by hand, NumPy and torch's own `clip_grad_norm_`."""

import pytest
import torch
import torch.nn.functional as F
from tolerance import assert_close, close
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import modelscope_cli as ms
from modelscope_cli.records.grads import ClipInfo


@pytest.fixture
def net():
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True))
    return nn.Sequential(block, nn.Conv2d(6, 4, 3), nn.Flatten(), nn.Linear(64, 5)).eval()


def differentiate(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the gradient of each parameter the plain way."""
    scores = model(x)
    parameters = dict(model.named_parameters())
    loss = F.cross_entropy(scores, scores.detach().argmax(1))
    return dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))


@pytest.mark.parametrize("kind", ["value", "norm"])
@pytest.mark.parametrize("batch", [1, 2, 3, 5])
def test_several_images_are_clipped_as_one_batch(net, kind, batch):
    """Whatever the size of a pass, also of the last, smaller one."""
    x = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    whole = differentiate(net, x)
    limit = 2**-6 if kind == "value" else 0.1
    for name, parameter in net.named_parameters():
        parameter.grad = whole[name].clone()
    clip = nn.utils.clip_grad_value_ if kind == "value" else nn.utils.clip_grad_norm_
    clip(net.parameters(), limit)
    clipped = {name: parameter.grad for name, parameter in net.named_parameters()}
    net.zero_grad()

    option = {"clip": limit} if kind == "value" else {"clip_norm": limit}
    found = ms.grads(net, x, batch=batch, **option)
    assert found.totals.grad_norm == close(sum(float(g.square().sum()) for g in clipped.values()) ** 0.5)
    for row in found.parameters:
        assert row.grad_norm == close(float(clipped[row.name].norm()))
        assert row.norm_before_clip == close(float(whole[row.name].norm()))
        share = float((whole[row.name].abs() > limit).float().mean()) if kind == "value" else 1.0
        assert row.clipped_fraction == pytest.approx(share, abs=1.5 / row.numel)


class Shared(nn.Module):
    """One linear layer used twice, plainly or out of checkpoints."""

    def __init__(self, use_reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.linear = nn.Linear(4, 4), nn.Linear(4, 4)
        self.use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.use_reentrant is None:
            return self.linear(self.linear(x).sigmoid())
        x = checkpoint(self.linear, x, use_reentrant=self.use_reentrant)
        return checkpoint(self.linear, x.sigmoid(), use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_gradient_that_comes_in_parts_is_clipped_as_a_whole(measure, kept, use_reentrant):
    x = torch.ones(2, 4)
    plain = differentiate(Shared(), x)
    found = measure(Shared(use_reentrant), x, clip=ClipInfo("value", 0.01))
    for row in found.parameters:
        raw = plain[row.name]
        assert_close(kept.parameters[row.name, "before"], raw)
        assert_close(kept.parameters[row.name, "after"], raw.clamp(-0.01, 0.01))
        assert row.clipped_fraction == (raw.abs() > 0.01).double().mean().item()
