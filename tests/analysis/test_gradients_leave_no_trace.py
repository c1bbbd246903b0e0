"""After `grads` the model is as it was found, whatever was asked for and whatever went wrong on the way."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modelscope_cli.errors import CannotRunError, ModelscopeError
from modelscope_cli.hooks.session import ForwardError
from modelscope_cli.records.grads import ClipInfo

X = torch.ones(2, 3, 8, 8)


class Explodes(torch.autograd.Function):
    """Nothing in the forward pass; raises `error` in the backward pass."""

    error: BaseException

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise Explodes.error


class Net(nn.Module):
    """Mixed flags, a gradient and hooks of the user's own, batch norm, dropout, marks left on itself."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout()
        self.head = nn.Linear(4, 5)
        self.register_buffer("n_runs", torch.zeros(1))
        self.bn.eval()
        self.head.bias.requires_grad_(False)
        self.conv.weight.grad = torch.ones_like(self.conv.weight)
        self.conv.bias.register_hook(lambda grad: None)
        self.head.register_forward_hook(lambda *_: None)
        self.fails_in: Callable[[str], None] = lambda place: None

    def forward(self, x: Tensor) -> Tensor:
        self.n_runs += 1
        self.seen = x
        self.fails_in("forward")
        x = self.drop(self.relu(self.bn(self.conv(x))))
        if getattr(self, "explodes", False):
            x = Explodes.apply(x)
        return self.head(x.mean((2, 3)))


REQUESTS = {
    "plain": {},
    "train mode": {"is_training": True},
    "clip": {"clip": ClipInfo("value", 0.01)},
    "clip norm": {"clip": ClipInfo("norm", 0.01)},
    "frozen": {"freeze": ("bn",), "is_training": True},
    "only the head": {"train_only": ("head",)},
}


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.mark.parametrize("options", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("n_passes", [1, 3])
def test_nothing_is_left(net, measure, unchanged, options, n_passes):
    grad = net.conv.weight.grad
    check = unchanged(net)
    measure(net, *[X] * n_passes, **options)
    check()
    assert torch.equal(grad, torch.ones_like(grad))
    assert not hasattr(net, "seen")


@pytest.mark.parametrize("options", REQUESTS.values(), ids=REQUESTS)
@pytest.mark.parametrize("error", [ValueError("no luck"), KeyboardInterrupt()], ids=["error", "ctrl-c"])
@pytest.mark.parametrize("place", ["forward", "backward", "loss"])
def test_nothing_is_left_after_a_failure(net, measure, unchanged, monkeypatch, options, error, place):
    def fail(*_: object) -> None:
        raise error

    if place == "forward":
        net.fails_in = fail
    elif place == "backward":
        net.explodes, Explodes.error = True, error
    else:
        monkeypatch.setattr("modelscope_cli.analysis.gradients.losses.Criterion.__call__", fail)
    check = unchanged(net)
    if place == "backward" and "train_only" in options:
        measure(net, X, **options)  # the backward pass does not reach what raises
        check()
        return
    with pytest.raises((ModelscopeError, KeyboardInterrupt, ValueError)) as caught:
        measure(net, X, **options)
    check()
    if isinstance(error, KeyboardInterrupt):
        assert caught.type is KeyboardInterrupt
    elif place == "forward":
        assert caught.type is ForwardError
        assert "ValueError: no luck" in caught.value.message
    elif place == "backward":
        assert caught.type is CannotRunError
        assert caught.value.message == "backward raised ValueError: no luck"


def test_what_hooks_and_losses_of_ones_own_leave_in_place_stays(net, measure):
    """The user's own hooks run, and are still there."""
    seen = []
    handle = net.conv.register_forward_hook(lambda *_: seen.append("forward"))
    net.conv.bias.register_hook(lambda grad: seen.append("backward"))
    measure(net, X)
    assert seen == ["forward", "backward"]
    handle.remove()
