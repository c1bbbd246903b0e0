"""The models of a script: the outermost calls of modules that have parameters."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.watching.error_isolation import after, replaced
from modelscope_cli.watching.parameters import parameters_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Enter = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Arguments]


def entered(enter: Enter) -> AbstractContextManager[None]:
    """Give every outermost call of a model the arguments that `enter` returns, while open."""
    call, depth = nn.Module.__call__, 0

    def outermost(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if depth or torch.compiler.is_compiling() or next(self.parameters(), None) is None:
            return call(self, *args, **kwargs)
        args, kwargs = enter(self, args, kwargs)
        depth += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            depth -= 1

    return replaced((nn.Module, "__call__", outermost))


def map_data(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    change: Callable[[Tensor], Tensor],
    is_data: Callable[[Tensor], bool] = lambda x: x.is_floating_point() and x.ndim > 1,
) -> Arguments:
    """Change the tensors among arguments that no model has computed, the data: those of numbers, two-dimensional at
    least."""

    def changed(value: Any) -> Any:
        is_given = isinstance(value, Tensor) and not value.requires_grad and is_data(value)
        return change(value) if is_given else value

    return tuple(map(changed, args)), {name: changed(value) for name, value in kwargs.items()}


class Models:
    """The models that ran with gradients, and all optimizers.

    Args:
        first: called with each such model before its first call.
    """

    def __init__(self, first: Callable[[nn.Module], object] = lambda _: None) -> None:
        self._first = first
        self.roots: list[nn.Module] = []
        self.optimizers: list[Optimizer] = []
        # By root: the modules that ran in it, registered there or not
        self._inside: dict[int, dict[int, nn.Module]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Observe while open."""
        call, root = nn.Module.__call__, None

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if root is not None:
                self._inside[id(root)].setdefault(id(module), module)
            return call(module, *args, **kwargs)

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
            nonlocal root
            root = module if torch.is_grad_enabled() else None
            if root is not None and id(module) not in self._inside:
                self._first(module)
                self.roots.append(module)
                self._inside[id(module)] = {}
            return args, kwargs

        made = after(Optimizer, self.optimizers.append)
        with replaced(made, (nn.Module, "__call__", called)), entered(enter):
            yield

    def parameters(self, root: nn.Module) -> list[nn.Parameter]:
        """Return the parameters of a model and of what ran inside of it, which may be in a list that hides it."""
        modules = root, *self._inside[id(root)].values()
        found = {id(p): p for module in modules for p in module.parameters() if p.is_floating_point()}
        return list(found.values())

    def missing(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Return what no optimizer holds of the models that one trains, and what else has a gradient.

        Of an optimizer that trains none, what no optimizer holds of all models.
        """
        held = {id(p) for one in self.optimizers for p in parameters_of(one)}
        own = {id(p) for p in parameters_of(optimizer)}
        by_root = [self.parameters(root) for root in self.roots]
        trained = [parameters for parameters in by_root if any(id(p) in own for p in parameters)]
        found = {id(p): p for parameters in trained or by_root for p in parameters}
        found |= {id(p): p for parameters in by_root for p in parameters if p.grad is not None}
        return [p for key, p in found.items() if key not in held]
