"""Who holds given parameters: the modules that give them their names, the optimizers that are to change them."""

import gc
from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.hooks.torch_private import has_compiled
from modelscope_cli.watching.model_registry import ModelRegistry, peel

_T = TypeVar("_T")


def find_owners(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """Return the outermost modules of this process that hold any of the parameters.

    It goes through everything that Python keeps track of, which takes about as long as a few steps.
    """
    wanted = {id(parameter) for parameter in parameters}
    owners = [module for module in _all_of(nn.Module) if _holds(module, wanted)] if wanted else []
    inside = {id(part) for owner in owners for part in owner.modules() if part is not owner}
    return [peel(owner) for owner in owners if id(owner) not in inside]


def register_hidden(registry: ModelRegistry, waiting: Iterable[Tensor], n_backward: int) -> bool:
    """Count in the models whose passes could not be seen, as inside a function that is compiled.

    Returns whether there are any. Their parameters have gradients, and their optimizer was never seen to step.

    Args:
        waiting: parameters that no step was seen to change.
    """
    models = registry.models
    if not has_compiled() or any(model.has_run for model in models):
        return False
    unclaimed = {id(p): p for p in waiting if p.grad is not None}
    for model in models:
        parameters = root.parameters() if (root := model.root()) is not None else ()
        model.has_run = bool([p for p in parameters if unclaimed.pop(id(p), None) is not None])
    # Ever more rarely: it goes through everything that Python keeps track of.
    if unclaimed and n_backward & (n_backward - 1) == 0:
        for owner in find_owners(unclaimed.values()):
            if (made := registry.register(owner)) is not None:
                made.has_run = True
    return any(model.has_run for model in models)


def find_optimizers(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Return the optimizers of this process that hold any of the parameters; it takes as long as `find_owners`."""
    wanted = {id(parameter) for parameter in parameters}
    if not wanted:
        return []  # of a script, before it has begun
    return [
        one
        for one in _all_of(Optimizer)
        if any(id(p) in wanted for group in getattr(one, "param_groups", ()) for p in group["params"])
    ]


def _all_of(kind: type[_T]) -> list[_T]:
    """Return all of a kind that Python keeps track of; each type is asked once, not each of a million objects."""
    everything = gc.get_objects()
    # Not isinstance: it asks lazy stand-ins for their class, which wakes them.
    kinds = {one for one in set(map(type, everything)) if issubclass(one, kind)}
    return [one for one in everything if type(one) in kinds]


def _holds(module: nn.Module, wanted: set[int]) -> bool:
    if type(module).__name__ == "GraphModule":
        return False  # what the compiler made of a model
    try:
        return any(id(parameter) in wanted for parameter in module.parameters())
    except AttributeError:  # it is not made to its end
        return False
