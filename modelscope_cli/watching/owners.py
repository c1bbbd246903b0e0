"""The modules that hold given parameters, also those that were never seen to run: they give them their names."""

import gc
from collections.abc import Iterable

from torch import Tensor, nn

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


def _holds(module: nn.Module, wanted: set[int]) -> bool:
    if type(module).__name__ == "GraphModule":
        return False  # what the compiler made of a model
    try:
        return any(id(parameter) in wanted for parameter in module.parameters())
    except AttributeError:  # it is not made to its end
        return False
