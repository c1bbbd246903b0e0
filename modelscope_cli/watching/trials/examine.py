"""Examinations, where no change helps: eight samples by heart, the gradients of layers beside differences."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modelscope_cli.hooks.random_states import kept_random_states
from modelscope_cli.records.naming import counted
from modelscope_cli.watching.error_isolation import replaced
from modelscope_cli.watching.trials.change import Act
from modelscope_cli.watching.trials.criteria import CriterionCall, wrapped_criteria
from modelscope_cli.watching.trials.optimizers import fresh_adamw
from modelscope_cli.watching.trials.roots import Arguments, entered, map_data

BY_HEART = 8  # samples
_STEP = 1e-6  # of a difference, as a share of the size of a tensor
_AWAY = 1e-2  # the same, of what is added to a tensor
_WRONG = 0.05  # share of a slope
_DIRECTIONS = 3
_NOTHING = 1e-12  # a slope
_MOST_VALUES = 1 << 20  # of an input


@dataclass(frozen=True, slots=True)
class Slopes:
    """The slopes of one module in several directions: by autograd, and by differences of its output."""

    layer: str
    type: str
    slopes: Sequence[tuple[float, float]]

    @property
    def is_wrong(self) -> bool:
        """Whether they differ by mistake, and not as a straight-through estimate, whose output does not change."""
        return any(measured for _, measured in self.slopes)

    @property
    def words(self) -> str:
        name, (by_autograd, measured) = f"{self.layer or 'the model'} ({self.type})", self.slopes[0]
        if not by_autograd:
            return f"{name} blocks the gradient, although its output changes"
        if not measured:
            return f"{name} has a gradient, although its output does not change with its input"
        ratios = [a / b for a, b in self.slopes if b]
        if max(ratios) - min(ratios) < _WRONG * abs(ratios[0]):
            return f"the gradient of {name} is {ratios[0]:.3g} times the slope of its output"
        return f"the gradient of {name} is {by_autograd:.3g}, but its output has the slope {measured:.3g}"


@contextmanager
def by_heart(act: Act) -> Iterator[None]:
    """Give the model eight samples of the first batch in every step, the criterion their targets, and use AdamW."""
    inputs: dict[tuple[int, ...], Tensor] = {}
    targets: dict[tuple[int, ...], Tensor] = {}
    rows = 0

    def repeated(first: Tensor, like: Tensor) -> Tensor:
        """Return samples of a first tensor, in which each of `rows` may take several places, as in a sequence."""
        several = max(len(like) // max(rows, 1), 1)
        grouped = first[: len(first) // several * several].unflatten(0, (-1, several))
        order = torch.arange(len(like) // several, device=like.device) % min(BY_HEART, len(grouped))
        return grouped[order].flatten(0, 1)

    def enter(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        nonlocal rows

        def first(x: Tensor) -> Tensor:
            nonlocal rows
            rows = len(x)
            return repeated(inputs.setdefault((id(root), *x.shape[1:]), x.clone()), x)

        if not torch.is_grad_enabled():
            return args, kwargs
        return map_data(args, kwargs, first, lambda x: x.ndim > 0)

    def handle(criterion: CriterionCall, original: Callable[..., Any]) -> Any:
        target, x = criterion.target, criterion.x
        if isinstance(target, Tensor) and target.ndim and isinstance(x, Tensor) and x.requires_grad and rows:
            key = (*x.shape[1:], -1, *target.shape[1:])
            known = targets.setdefault(key, target.clone())
            # Each sample is a class
            is_pairing = target.ndim == 1 and target.tolist() == list(range(len(target)))
            if not is_pairing and len(target) % rows == 0 and len(known) >= len(target) // rows:
                if strong.n:
                    act()
                criterion = criterion.with_arguments(target=repeated(known, target))
        return original(*criterion.args, **criterion.kwargs)

    strong = Act(lambda **_: None, lambda: None)  # nothing is learnt by heart with the script's own recipe
    with fresh_adamw(strong), entered(enter), replaced(*wrapped_criteria(handle)):
        yield


def gradients_beside_differences(act: Act) -> AbstractContextManager[None]:
    """Compare the gradient of each module with differences of its output, in the second pass with gradients."""
    n_passes = 0

    def enter(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        nonlocal n_passes
        n_passes += torch.is_grad_enabled()
        if torch.is_grad_enabled() and n_passes == 2:
            act()
            _examine(root, args, kwargs, act)
        return args, kwargs

    return entered(enter)


def _examine(root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], act: Act) -> None:
    """Write the slopes of the innermost modules where they differ: one that agrees is not searched."""
    inputs = _inputs_of_modules(root, args, kwargs)
    modules = dict(root.named_modules())
    n = n_failed = 0

    def search(name: str) -> bool:
        """Tell whether a module or one inside of it is wrong."""
        nonlocal n, n_failed
        slopes: list[tuple[float, float]] = []
        if name in inputs:
            try:
                slopes = [_slopes(modules[name], inputs[name], seed) for seed in range(_DIRECTIONS)]
                n += 1
            except Exception:
                n_failed += 1
        if slopes and not all(_differ(*pair) for pair in slopes):
            return False
        inner = [f"{name}.{child}" if name else child for child, _ in modules[name].named_children()]
        found = [search(one) for one in inner if one in modules]  # all of them
        if any(found):
            return True
        if slopes:
            act.tell(found=asdict(Slopes(name, type(modules[name]).__name__, slopes)))
        return bool(slopes)

    if not search(""):
        told = f"gradients agree with finite differences in {counted(n, 'module')}, submodules included"
        act.tell(found={"words": f"{told}; {n_failed} could not be compared" if n_failed else told})


def _differ(by_autograd: float, measured: float) -> bool:
    size = max(abs(by_autograd), abs(measured))
    return size > _NOTHING and abs(by_autograd - measured) > _WRONG * size


def _inputs_of_modules(
    root: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return copies of the arguments of the first call of each module."""
    found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    copied = copy.deepcopy(root)
    copied.eval()

    def see(name: str) -> Any:
        def hook(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
            values = [one for one in (*given, *named.values()) if isinstance(one, Tensor)]
            if name not in found and sum(map(torch.numel, values)) <= _MOST_VALUES:
                found[name] = _detached(given), _detached(named)

        return hook

    for name, module in copied.named_modules():
        module.register_forward_pre_hook(see(name), with_kwargs=True)
    with torch.no_grad(), kept_random_states():
        copied(*args, **kwargs)
    return found


def _detached(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().double().clone() if value.is_floating_point() else value.clone()
    if isinstance(value, (tuple, list)):
        return type(value)(map(_detached, value))
    return {key: _detached(one) for key, one in value.items()} if isinstance(value, dict) else value


def _slopes(
    module: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], seed: int
) -> tuple[float, float]:
    """Return the slope of a random sum of the outputs along a random direction, by autograd and by differences."""
    copied = copy.deepcopy(module).double().eval()
    args, kwargs = _detached(inputs[0]), _detached(inputs[1])
    generator = torch.Generator().manual_seed(seed)
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.is_floating_point()]
    moved = [*given, *(p for p in copied.parameters() if p.requires_grad)]
    with torch.no_grad():  # away from the kinks at zeros and at ties
        for x in moved:
            x.add_(torch.randn(x.shape, generator=generator, dtype=torch.float64) * _size(x), alpha=_AWAY)
    directions = [torch.randn(x.shape, generator=generator, dtype=torch.float64) * _size(x) for x in moved]

    def total() -> Tensor:
        outputs = copied(*args, **kwargs)
        several = (outputs,) if isinstance(outputs, Tensor) else outputs
        tensors = [x for x in several if isinstance(x, Tensor) and x.is_floating_point()]
        weights = torch.Generator().manual_seed(seed + 100)
        drawn = [torch.randn(x.shape, generator=weights, dtype=torch.float64) for x in tensors]
        return torch.stack([(x * y).sum() for x, y in zip(tensors, drawn, strict=True)]).sum()

    def shift(by: float) -> None:
        with torch.no_grad():
            for x, direction in zip(moved, directions, strict=True):
                x.add_(direction, alpha=by)

    with torch.enable_grad():
        for x in given:
            x.requires_grad_(True)
        result = total()
        is_cut = not result.requires_grad
        gradients = [None] * len(moved) if is_cut else torch.autograd.grad(result, moved, allow_unused=True)
    pairs = zip(gradients, directions, strict=True)
    by_autograd = sum(float((g * d).sum()) for g, d in pairs if g is not None)
    with torch.no_grad():
        shift(_STEP)
        above = total()
        shift(-2 * _STEP)
        below = total()
    return by_autograd, float(above - below) / (2 * _STEP)


def _size(x: Tensor) -> Tensor:
    """Return the root mean square, at least a small one."""
    return x.detach().square().mean().sqrt().clamp_min(1e-3)
