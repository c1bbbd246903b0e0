"""A model that marks itself, a model that swallows errors, and an observer, for the tests of the session."""

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.session import Call, HookSession, Observer

X = (torch.ones(2, 3, 8, 8),)


class Seen(Observer):
    """Writes down the calls, and the sum of what each gave at the moment it was given."""

    def __init__(self) -> None:
        self.entered: list[Call] = []
        self.left: list[Call] = []
        self.innermost: list[str] = []
        self.sums: dict[str, float] = {}

    def enter(self, call: Call, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.entered.append(call)

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        self.left.append(call)
        if is_innermost:
            self.innermost.append(call.label)
        if isinstance(output, Tensor) and not output.is_meta:
            self.sums[call.label] = float(output.sum())


class Block(nn.Module):
    """Batch norm that its own forward trains, a ReLU used twice in place, and marks left on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout()
        self.history: list[Tensor] = []
        self.cache: dict[str, Tensor] = {}
        self.register_buffer("counter", torch.zeros(1))
        self.counter: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.bn.train()
        self.drop.train()
        self.counter = self.counter + 1
        self.last_input = x
        self.history.append(x)
        self.cache["x"] = x
        self.conv.weight.requires_grad_(False)
        self.conv.register_forward_hook(lambda *_: None)
        x = self.relu(self.bn(self.conv(x)) - 0.5)
        return self.relu(self.drop(x) - 1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace=True))
        self.block = Block()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
        self.stem[0].eval()  # flags are mixed
        self.block.drop.eval()
        self.stem[0].bias.requires_grad_(False)
        self.head[1].weight.grad = torch.ones_like(self.head[1].weight)
        self.seen_by_user: list[str] = []
        self.head[1].register_forward_hook(lambda *_: self.seen_by_user.append("out"))
        self.head[1].register_forward_pre_hook(lambda module, args, kwargs: None, with_kwargs=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.stem(x)))


class Raise(nn.Module):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


class Swallowing(nn.Module):
    """Goes on after whatever its first part raises."""

    def __init__(self, first: nn.Module, caught: type[BaseException] = Exception) -> None:
        super().__init__()
        self.first, self.last, self.caught = first, nn.Identity(), caught

    def forward(self, x: Tensor) -> Tensor:
        with suppress(self.caught):
            x = self.first(x)
        return self.last(x)


def run(model: nn.Module, *observers: Observer, **options: Any) -> Any:
    with HookSession(model, observers, **options) as session:
        return session.run(X)
