"""A replayed pass equals a whole one with the same hook, bit for bit, whatever the model does in its forward."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchvision.models as zoo
from tolerance import are_close, assert_close
from torch import Tensor, nn

from modelscope_cli.analysis.ablation.partial_rerun import Replay
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.session import Call, HookSession, Observer

FAMILIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet, basic": (lambda: zoo.ResNet(zoo.resnet.BasicBlock, [1, 2, 1, 1], 5), 64),
    "densenet": (lambda: zoo.DenseNet(8, (2, 2, 1, 1), 16, num_classes=5), 64),
    "mobilenet_v3": (partial(zoo.mobilenet_v3_small, num_classes=5), 64),
    "shufflenet": (partial(zoo.shufflenet_v2_x0_5, num_classes=5), 64),
    "convnext": (
        lambda: zoo.ConvNeXt(
            [zoo.convnext.CNBlockConfig(8, 16, 2), zoo.convnext.CNBlockConfig(16, None, 2)], num_classes=5
        ),
        32,
    ),
    "vit": (lambda: zoo.VisionTransformer(32, 8, 3, 2, 16, 32, num_classes=5), 32),
    "swin": (lambda: zoo.SwinTransformer([4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=5), 32),
}


class Finished(Observer):
    """Every call of a pass, in the order in which they finish."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.calls.append(call)


def damaged(output: Any) -> Any:
    """Half of what a layer gave, in the first tensor of its output."""
    if isinstance(output, Tensor):
        return output * 0.5
    first, *others = output
    return (damaged(first), *others)


def whole_rerun(model: nn.Module, x: Tensor, call: Call) -> Tensor:
    """Run the model with an ordinary forward hook on one call."""
    n_calls = 0

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        return damaged(output) if n_calls == call.index + 1 else None

    handle = model.get_submodule(call.name).register_forward_hook(hook)
    try:
        with torch.no_grad():
            return model(x.clone())
    finally:
        handle.remove()


def calls_of(model: nn.Module, x: Tensor) -> list[Call]:
    seen = Finished()
    with HookSession(model, [seen]) as session:
        session.run((x.clone(),))
    return [call for call in seen.calls if call.name]


def check(model: nn.Module, x: Tensor, calls: list[Call], **options: Any) -> Replay:
    """Compare a replay of every call, twice each, with a whole rerun."""
    replay = Replay(**options)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        expected = [whole_rerun(model, x, call) for call in calls]
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    with torch.no_grad():
        whole = model(x.clone())
    assert sum(not are_close(truth, whole) for truth in expected) > len(calls) / 2  # something is at stake
    with HookSession(model, interventions=[replay]) as session:
        for call, truth in zip(calls, expected, strict=True):
            for _ in range(2):
                found = replay.rerun(session, (x.clone(),), call.order, damaged)
                assert_close(found, truth)
    return replay


def awake(model: nn.Module, x: Tensor) -> nn.Module:
    """Make a fresh model say something: no weight is next to zero, as those that scale the layers of ConvNeXt are,
    and the batch norms fit what they get."""
    for parameter in model.parameters():
        if parameter.abs().max() < 1e-4:
            nn.init.normal_(parameter, std=0.1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(x)
    return model.eval()


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    make, size = FAMILIES[name]
    torch.manual_seed(0)
    x = noise(2, 3, size, size)
    model = awake(make(), x)
    calls = calls_of(model, x)
    step = max(len(calls) // 9, 1)
    check(model, x, calls[::step] + calls[-1:])
    assert not any("forward" in vars(module) or module._forward_hooks for module in model.modules())


class Rewritten(nn.Module):
    """Uses a tensor again after an in-place layer wrote into it, as pre-activation networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu, self.conv = (
            nn.BatchNorm2d(3),
            nn.ReLU(inplace=True),
            nn.Conv2d(3, 3, 3, padding=1),
        )
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return self.head((self.conv(self.relu(y)) + y).mean((2, 3)))


class Aliased(nn.Module):
    """Writes through what looks like another tensor: a dropout that does nothing, a view, a chunk."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.same, self.flat = nn.Conv2d(3, 4, 3), nn.Dropout(), nn.Flatten(2)
        self.last = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        self.same(y).mul_(2)
        self.flat(y)[:, 1] += 1
        halves = self.last(y).chunk(2, 1)
        halves[0].add_(y[:, :2])
        return torch.cat(halves, 1).mean((2, 3))


class Layer(nn.Module):
    """A layer made of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class Impure(nn.Module):
    """Layers that do more than return something new: whoever holds what they were given sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1)
        self.twice = Layer(lambda x: [x * 2] * 2)  # both the same tensor
        self.write = Layer(lambda x: x.mul_(3) + 1)  # gives something new, and wrote into its input
        self.append = Layer(lambda x, kept: kept.append(x * 3) or x + 1)
        self.swap = Layer(lambda x, kept: kept.__setitem__(0, x * 4) or x + 2)
        self.thin = Layer(lambda x: (x * 5)[..., ::2])  # with gaps in memory, which the caller measures

    def forward(self, x: Tensor) -> Tensor:
        thin = self.thin(x)
        one, two = self.twice(self.mix(x))
        one.neg_()
        x = self.mix(x)
        parts = [two, self.write(x), x]
        kept: list[Tensor] = []
        parts += [self.append(x, kept), self.swap(x, swapped := [x * 1])]
        means = [part.mean((2, 3)) for part in [*parts, *kept, *swapped]]
        return torch.cat([*means, thin.mean((2, 3)) * thin.stride(-1)], 1)


class Shared(nn.Module):
    """The same layers in several blocks, one of them called by hand."""

    def __init__(self) -> None:
        super().__init__()
        conv, relu = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList(
            [nn.Sequential(conv, relu), nn.Sequential(relu, conv), nn.Sequential(conv)]
        )
        self.conv = conv

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x * 1)
        x = self.conv.forward(x)
        return self.blocks[0](x).mean((2, 3))


class Entered(nn.Module):
    """Writes into its own input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.pool = nn.AdaptiveMaxPool2d(1, return_indices=True)

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        pooled, _ = self.pool(self.conv(x) + x.mean())
        return pooled.flatten(1)


@pytest.mark.parametrize("make", [Rewritten, Aliased, Impure, Shared, Entered])
def test_memory_shared_in_every_way(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    x = noise(2, 3, 8, 8)
    calls = calls_of(model, x)
    check(model, x, calls)
    check(model, x, calls, skips_blocks=False)
    for call in calls:
        check(model, x, [call])


def test_hooks_of_the_models_own_are_not_applied_twice() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Sequential(nn.Conv2d(4, 4, 3)), nn.Flatten(), nn.Linear(64, 4)
    )
    model[0].register_forward_hook(lambda module, args, output: output + 1)
    model[1].register_forward_hook(lambda module, args, output: output * 2)
    model[1].register_forward_pre_hook(lambda module, args: args[0] - 3)
    x = noise(2, 3, 8, 8)
    check(model.eval(), x, calls_of(model, x))


def test_layers_before_the_change_do_not_run_again() -> None:
    torch.manual_seed(0)
    model = zoo.resnet18(num_classes=5).eval()
    x = noise(1, 3, 64, 64)
    calls = {call.label: call for call in calls_of(model, x)}
    ran = Finished()
    replay = Replay()
    with HookSession(model, [ran], interventions=[replay]) as session:
        for _ in range(2):
            ran.calls.clear()
            replay.rerun(session, (x,), calls["layer4.0.conv2"].order, damaged)
    # Blocks that had finished are called and give what they gave; nothing inside them is.
    inside = [call.name for call in ran.calls if call.name.startswith(("layer1.", "layer2.", "layer3."))]
    assert inside == []
    assert "layer4.1.conv1" in [call.name for call in ran.calls]
    assert len(replay._finished) < 12


def test_a_model_that_goes_another_way_each_time_is_refused() -> None:
    class Turning(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways, self.n = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)]), 0

        def forward(self, x: Tensor) -> Tensor:
            self.n += 1
            return self.ways[self.n % 2](x) + self.ways[0](x)

    replay = Replay()
    with HookSession(Turning(), interventions=[replay]) as session:
        replay.rerun(session, (noise(2, 3),), 3, damaged)
        with pytest.raises(CannotRunError, match="calls different layers"):
            replay.rerun(session, (noise(2, 3),), 3, damaged)
