"""Layers that behave differently in training mode and in evaluation mode, and those a model does not register."""

from collections.abc import Iterator

from torch import nn


def layers_in_mode(root: nn.Module | None, is_training: bool) -> tuple[str, ...]:
    """Return the classes of layers in one mode that depend on the mode, without those frozen in evaluation mode.

    Frozen on purpose are batch norms without a free parameter, and other layers directly in a module without one.
    """
    if root is None:
        return ()
    around = {module: parent for parent in root.modules() for module in parent.children()}

    def is_frozen(module: nn.Module) -> bool:
        while next(module.parameters(), None) is None and module in around:
            module = around[module]
        return not any(parameter.requires_grad for parameter in module.parameters())

    modules = [one for one in root.modules() if one.training == is_training and _asks_for_mode(one)]
    return tuple(dict.fromkeys(type(one).__name__ for one in modules if is_training or not is_frozen(one)))


def unregistered_in(root: nn.Module, module: nn.Module) -> Iterator[str]:
    """Yield the name of each attribute that holds a module in a list or a dictionary, and which of both it is."""
    for path, owner in root.named_modules():
        for name, held in vars(owner).items():
            several = held.values() if (is_dict := isinstance(held, dict)) else held
            if (is_dict or isinstance(held, list | tuple)) and any(one is module for one in several):
                yield f"{path}.{name}: {'Dict' if is_dict else 'List'}".removeprefix(".")


def _asks_for_mode(module: nn.Module) -> bool:
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    if isinstance(module, kinds) or "Drop" in type(module).__name__:
        return getattr(module, "p", getattr(module, "drop_prob", 1)) != 0
    code = getattr(type(module).forward, "__code__", None)
    is_own = not type(module).__module__.startswith("torch.")
    return is_own and code is not None and "training" in code.co_names
