"""Trials that change how an optimizer steps: its learning rate, its settings, the parameters that it holds."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from modelscope_cli.watching.error_isolation import around_steps
from modelscope_cli.watching.parameters import parameters_of
from modelscope_cli.watching.steps import unusual
from modelscope_cli.watching.trials.change import Act, Change
from modelscope_cli.watching.trials.roots import Models

Group = dict[str, Any]
_STRONG_RATE = 1e-3  # of AdamW, which suits most small models from scratch


def _with_groups(settings: Callable[[Optimizer, Group], Group], act: Act) -> AbstractContextManager[None]:
    """Give the groups of an optimizer other settings during each of its steps, which no schedule sees."""
    before: list[tuple[Optimizer, list[tuple[Group, Group]]]] = []

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        changed = {id(group) for _, pairs in before for group, _ in pairs}
        pairs = []
        for group in optimizer.param_groups:
            new = {} if id(group) in changed else settings(optimizer, group)
            pairs.append((group, {name: group[name] for name in new}))
            group.update(new)
            if new:
                act()
        before.append((optimizer, pairs))

    def end(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        while before:
            begun, pairs = before.pop()
            for group, old in pairs:
                group.update(old)
            if begun is optimizer:
                return

    return around_steps(begin, end)


def rate_times(factor: float) -> Change:
    """Multiply every learning rate."""
    return lambda act: _with_groups(lambda _, group: {"lr": group["lr"] * factor} if group["lr"] else {}, act)


def constant_rate(act: Act) -> Any:
    """Step at the highest rate of a schedule of torch all the time."""
    first: dict[int, float] = {}  # by group: ReduceLROnPlateau keeps no initial rate

    def highest(_: Optimizer, group: Group) -> Group:
        own = first.setdefault(id(group), group["lr"])
        return {"lr": group.get("max_lr", group.get("initial_lr", own))}

    return _with_groups(highest, act)


def no_weight_decay(act: Act) -> Any:
    """Step without weight decay."""
    return _with_groups(lambda _, group: {"weight_decay": 0.0} if group.get("weight_decay") else {}, act)


def usual_settings(act: Act) -> Any:
    """Step with the usual betas, momentum and eps of an optimizer."""
    return _with_groups(unusual, act)


@contextmanager
def fresh_adamw(act: Act) -> Iterator[None]:
    """Replace each optimizer by a new AdamW over its own parameters and those of its models that none holds."""

    def adamw(optimizer: Optimizer, others: list[nn.Parameter]) -> Optimizer:
        return torch.optim.AdamW([*parameters_of(optimizer), *others], lr=_STRONG_RATE)

    with _thawed(act), _stepping_besides(adamw, act, is_instead=True):
        yield


def missing_added(act: Act) -> Any:
    """Let an optimizer of the same settings train the parameters of the models that no optimizer holds."""
    return _stepping_besides(_sibling, act)


@contextmanager
def unfrozen(act: Act) -> Iterator[None]:
    """Let gradients reach frozen parameters, and train them."""
    with _thawed(act), _stepping_besides(_sibling, lambda: None):
        yield


def _thawed(act: Act) -> AbstractContextManager[None]:
    def thaw(root: nn.Module) -> None:
        parameters = [p for p in root.parameters() if p.is_floating_point()]
        frozen = [p for p in parameters if not p.requires_grad]
        if len(frozen) < len(parameters):  # else a network that only measures
            for parameter in frozen:
                parameter.requires_grad_(True)
                act()

    return Models(thaw).installed()


def _sibling(optimizer: Optimizer, parameters: list[nn.Parameter]) -> Optimizer | None:
    """Return an optimizer of the same class and settings; None where there is nothing to train."""
    if not parameters:
        return None
    group = optimizer.param_groups[0]
    names = inspect.signature(type(optimizer).__init__).parameters
    settings = {name: group[name] for name in names if name in group and name != "params"}
    return type(optimizer)(parameters, **settings)


Make = Callable[[Optimizer, list[nn.Parameter]], Optimizer | None]


@contextmanager
def _stepping_besides(make: Make, act: Callable[[], object], *, is_instead: bool = False) -> Iterator[None]:
    """Let an optimizer of our own, made for what none holds, step before each of the script's.

    With `is_instead` the script's own finds no gradients at its step, so that it changes nothing.
    """
    models = Models()
    ours: dict[int, tuple[Optimizer | None, list[nn.Parameter]]] = {}
    hidden: list[tuple[Optimizer, list[tuple[torch.Tensor, Any]]]] = []
    is_ours = False

    def begin(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal is_ours
        has_closure = any(one is not None for one in (*args[1:], kwargs.get("closure")))
        if is_ours or hidden or has_closure:  # a closure computes gradients later
            return
        is_ours = True
        if id(optimizer) not in ours:
            n, missing = len(models.optimizers), models.missing(optimizer)
            ours[id(optimizer)] = make(optimizer, missing), missing
            del models.optimizers[n:]
        beside, missing = ours[id(optimizer)]
        if beside is not None:
            if not is_instead:
                beside.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]
            beside.step()
            act()
        is_ours = False
        for parameter in missing:
            parameter.grad = None
        if is_instead:
            own = parameters_of(optimizer)
            hidden.append((optimizer, [(p, p.grad) for p in own]))
            for one in own:
                one.grad = None

    def end(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if hidden and hidden[-1][0] is optimizer:
            for parameter, gradient in hidden.pop()[1]:
                parameter.grad = gradient

    with models.installed(), around_steps(begin, end):
        yield
