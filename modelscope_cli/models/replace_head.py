"""Give a pretrained model a head for another number of classes."""

from torch import nn


def graft(pretrained: nn.Module, fresh: nn.Module) -> list[str]:
    """Move into `pretrained` the modules of `fresh` whose tensors have other shapes; return their names.

    `fresh` is the same architecture built for the wanted number of classes. Everything else stays
    as training left it, but for plain integers such as `num_classes`, by which heads reshape their output.
    """
    moved: list[str] = []
    for path, old in list(pretrained.named_modules()):
        new = _submodule(fresh, path)
        if new is None:
            continue
        if _differ(_own_shapes(old), _own_shapes(new)):
            pretrained.set_submodule(path, new)
            moved += [f"{path}.{name}" for name, _ in new.named_parameters()]
        else:
            vars(old).update({name: value for name, value in vars(new).items() if type(value) is int})
    return moved


def _submodule(module: nn.Module, path: str) -> nn.Module | None:
    try:
        return module.get_submodule(path)
    except AttributeError:
        return None


def _own_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _differ(old: dict[str, tuple[int, ...]], new: dict[str, tuple[int, ...]]) -> bool:
    """Only by what both have: a frozen batch norm counts no batches, which does not make it a head."""
    return any(old[name] != new[name] for name in old.keys() & new.keys())
