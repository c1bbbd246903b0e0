"""Who holds given parameters: the modules that give them their names, the optimizers that are to change them."""

import gc
from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from modelscope_cli.watching.model_registry import peel


def find_owners(parameters: Iterable[Tensor]) -> list[nn.Module]:
    """Return the outermost modules of this process that hold any of the parameters.

    It goes through everything that Python keeps track of, which takes about as long as a few steps.
    """
    wanted = {id(parameter) for parameter in parameters}
    # Not isinstance: it asks lazy stand-ins for their class, which wakes them.
    modules = [one for one in gc.get_objects() if issubclass(type(one), nn.Module)] if wanted else []
    owners = [module for module in modules if _holds(module, wanted)]
    inside = {id(part) for owner in owners for part in owner.modules() if part is not owner}
    return [peel(owner) for owner in owners if id(owner) not in inside]


def find_optimizers(parameters: Iterable[Tensor]) -> list[Optimizer]:
    """Return the optimizers of this process that hold any of the parameters; it takes as long as `find_owners`."""
    wanted = {id(parameter) for parameter in parameters}
    optimizers = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]
    return [
        one
        for one in optimizers
        if any(id(p) in wanted for group in getattr(one, "param_groups", ()) for p in group["params"])
    ]


def _holds(module: nn.Module, wanted: set[int]) -> bool:
    if type(module).__name__ == "GraphModule":
        return False  # what the compiler made of a model
    try:
        return any(id(parameter) in wanted for parameter in module.parameters())
    except AttributeError:  # it is not made to its end
        return False
