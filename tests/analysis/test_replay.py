"""A replayed pass equals a whole one with the same hook, bit for bit, whatever the model does in its forward."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchvision.models as zoo
from torch import Tensor, nn

from modelscope_cli.analysis.replay import Replay
from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.session import Call, HookSession, Observer

FAMILIES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "alexnet": (partial(zoo.alexnet, num_classes=5), 64),
    "vgg": (lambda: zoo.VGG(zoo.vgg.make_layers([8, "M", 512], True), 5, init_weights=False), 32),
    "resnet18": (partial(zoo.resnet18, num_classes=5), 64),
    "resnet50": (partial(zoo.resnet50, num_classes=5), 64),
    "densenet": (lambda: zoo.DenseNet(8, (2, 2, 1, 1), 16, num_classes=5), 64),
    "mobilenet_v2": (partial(zoo.mobilenet_v2, num_classes=5), 64),
    "mobilenet_v3": (partial(zoo.mobilenet_v3_small, num_classes=5), 64),
    "efficientnet": (partial(zoo.efficientnet_b0, num_classes=5), 64),
    "googlenet": (partial(zoo.googlenet, num_classes=5, init_weights=False, transform_input=True), 64),
    "inception": (partial(zoo.inception_v3, num_classes=5, init_weights=False, aux_logits=False), 96),
    "shufflenet": (partial(zoo.shufflenet_v2_x0_5, num_classes=5), 64),
    "squeezenet": (partial(zoo.squeezenet1_1, num_classes=5), 64),
    "mnasnet": (partial(zoo.mnasnet0_5, num_classes=5), 64),
    "regnet": (partial(zoo.regnet_y_400mf, num_classes=5), 64),
    "convnext": (
        lambda: zoo.ConvNeXt(
            [zoo.convnext.CNBlockConfig(8, 16, 2), zoo.convnext.CNBlockConfig(16, None, 2)], num_classes=5
        ),
        32,
    ),
    "vit": (lambda: zoo.VisionTransformer(32, 8, 3, 2, 16, 32, num_classes=5), 32),
    "swin": (lambda: zoo.SwinTransformer([4, 4], 8, [2, 2], [2, 2], [4, 4], num_classes=5), 32),
    "swin_v2": (
        lambda: zoo.SwinTransformer(
            [4, 4],
            8,
            [2, 2],
            [2, 2],
            [4, 4],
            num_classes=5,
            block=zoo.swin_transformer.SwinTransformerBlockV2,
            downsample_layer=zoo.swin_transformer.PatchMergingV2,
        ),
        32,
    ),
    "maxvit": (lambda: zoo.MaxVit((64, 64), 8, 4, [8, 16], [1, 1], 8, 0.0, num_classes=5), 64),
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
    with HookSession(model, interventions=[replay]) as session:
        for call, truth in zip(calls, expected, strict=True):
            for _ in range(2):
                found = replay.rerun(session, (x.clone(),), call.order, damaged)
                assert torch.equal(found, truth), call.label
    return replay


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    make, size = FAMILIES[name]
    torch.manual_seed(0)
    model = make().eval()
    x = noise(2, 3, size, size)
    calls = calls_of(model, x)
    step = max(len(calls) // 12, 1)
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


class Halves(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        y = x * 2
        return [y[:, :2], y[:, 1:]]  # which overlap


class Overlapping(nn.Module):
    """A layer whose outputs share memory, one that writes into its input, one that fills a list it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.halves, self.collect, self.mix = Halves(), Collect(), nn.Conv2d(3, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.halves(self.mix(x))
        one.neg_()
        kept: list[Tensor] = []
        last = self.collect(self.mix(x), kept)
        return torch.cat([two, kept[0], last], 1).mean((2, 3))


class Collect(nn.Module):
    def forward(self, x: Tensor, kept: list[Tensor]) -> Tensor:
        kept.append(x * 3)
        return x + 1


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


@pytest.mark.parametrize("make", [Rewritten, Aliased, Overlapping, Shared, Entered])
def test_memory_shared_in_every_way(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().eval()
    x = noise(2, 3, 8, 8)
    check(model, x, calls_of(model, x))
    check(model, x, calls_of(model, x), skips_blocks=False)


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


class Keeping(nn.Module):
    """One block leaves something behind for another, past the graph that hooks see."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.left = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1), None

    def forward(self, x: Tensor) -> Tensor:
        self.left = self.first(x)
        return (self.second(x) * self.left).mean((2, 3))


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
        with pytest.raises(CannotRunError, match="calls other layers"):
            replay.rerun(session, (noise(2, 3),), 3, damaged)


def test_a_call_that_never_comes_is_an_error() -> None:
    replay = Replay()
    with (
        HookSession(nn.ReLU(), interventions=[replay]) as session,
        pytest.raises(CannotRunError, match="other"),
    ):
        replay.rerun(session, (noise(2, 3),), 2, damaged)
