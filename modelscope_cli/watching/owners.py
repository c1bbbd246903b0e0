"""Who holds given parameters: the modules that give them their names, the optimizers that are to change them."""

import gc
from collections.abc import Iterable
from typing import TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.watching.model_registry import peel

_T = TypeVar("_T")


def find_owners(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """Return the outermost modules of this process that hold any of the parameters.

    It goes through everything that Python keeps track of, which takes about as long as a few steps.
    """
    wanted = {id(parameter) for parameter in parameters}
    owners = [module for module in _all_of(nn.Module) if _holds(module, wanted)] if wanted else []
    inside = {id(part) for owner in owners for part in owner.modules() if part is not owner}
    return [peel(owner) for owner in owners if id(owner) not in inside]


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
