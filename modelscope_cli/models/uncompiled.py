"""Take a model out of what `torch.compile` puts around it."""

from torch import nn


def uncompiled(module: nn.Module) -> nn.Module:
    """Return the module that was given to `torch.compile`; any other module as it is."""
    is_compiled = type(module).__name__ == "OptimizedModule"
    return module.get_submodule("_orig_mod") if is_compiled else module


def compiled_notes(module: nn.Module) -> tuple[str, ...]:
    """Say of a compiled model how it is looked at; nothing of any other."""
    is_compiled = uncompiled(module) is not module
    return ("torch.compile: the model is inspected uncompiled",) if is_compiled else ()
