"""Small models for the tests of hooks, and one way to run hooks on them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.binding import BoundHooks, bind_hooks
from modelscope_cli.hooks.session import HookSession, Observer
from modelscope_cli.hooks.spec import parse_hook
from modelscope_cli.records.run import HookReport

X = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


class Residual(nn.Module):
    """A shortcut that hands on its input, one ReLU used twice, in place, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 1)
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()
        self.flat = nn.Flatten()
        self.head = nn.Linear(144, 5)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv2(self.relu(self.conv1(x)))
        return self.head(self.flat(self.relu(y + self.shortcut(x))))


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclass(frozen=True)
class Named:
    values: Tensor
    ids: Tensor
    n: int


class Fuse(nn.Module):
    def forward(self, x: Tensor, y: Tensor, *, weight: Tensor) -> dict[str, Any]:
        return {
            "sum": x + weight * y,
            "both": Pair(x, y),
            "named": Named(x, torch.arange(3), 7),
            "none": None,
        }


class Tree(nn.Module):
    """Hands a dict, a named tuple and a dataclass from layer to layer, and an argument by name."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = Fuse()

    def forward(self, x: Tensor) -> dict[str, Any]:
        return self.fuse(x, x + 1, weight=torch.tensor(2.0))


def model(kind: type[nn.Module] = Residual) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def bind(
    module: nn.Module, *texts: str, function: Callable[..., Any] | None = None, seed: int = 0
) -> tuple[BoundHooks, list[str]]:
    """Bind hooks; `function` is that of every `call`, and what `print` says goes to the list."""
    said: list[str] = []
    specs = [parse_hook(text) for text in texts]
    typed = [(spec, function if spec.action == "call" else None) for spec in specs]
    return bind_hooks(typed, module, (X,), seed=seed, say=said.append), said


def run(
    module: nn.Module,
    *texts: str,
    function: Callable[..., Any] | None = None,
    observers: tuple[Observer, ...] = (),
    backward: bool = False,
) -> tuple[Any, tuple[HookReport, ...]]:
    """Run one pass under hooks; return what the model gave, or with `backward` the gradients by parameter."""
    bound, _ = bind(module, *texts, function=function)
    with HookSession(
        module, observers, interventions=bound.interventions, with_gradients=backward
    ) as session:
        result = session.run((X,))
        if backward:
            result.square().sum().backward()
            result = gradients(module)
    return result, bound.reports()


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
