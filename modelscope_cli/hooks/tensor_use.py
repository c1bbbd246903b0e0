"""Which layers take part in a forward by their own parameters and buffers, called or not."""

from typing import Any

from torch import Tensor, UntypedStorage, nn, strided
from torch.nn.parameter import is_lazy

from modelscope_cli.records.naming import layer_of


def storages_in(value: Any) -> list[UntypedStorage]:
    """Return where the tensors that an operator takes or gives keep their values: it knows no containers but lists.

    They are told apart by identity: on meta all lie at address 0.
    """
    if isinstance(value, Tensor):
        return _storage_of(value)
    return (
        [storage for one in value for storage in storages_in(one)] if isinstance(value, list | tuple) else []
    )


def _storage_of(tensor: Tensor) -> list[UntypedStorage]:
    if is_lazy(tensor) or tensor.layout is not strided:
        return []
    try:
        return [tensor.untyped_storage()]
    except (RuntimeError, NotImplementedError):  # a class of somebody's own, which may have none
        return []


class TensorUse:
    """Notes whose tensors an operator is given.

    Attributes:
        layers: names of the layers of whose own parameters and buffers one was used, tied ones included.
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers: set[str] = set()
        self._owners: dict[int, tuple[UntypedStorage, set[str]]] = {}
        named = (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
        for name, tensor in named:
            for storage in storages_in(tensor):  # held, so that no other gets its number
                self._owners.setdefault(id(storage), (storage, set()))[1].add(layer_of(name))

    def see(self, given: list[UntypedStorage]) -> None:
        """Look at what an operator is given."""
        for storage in given:
            if id(storage) in self._owners:
                self.layers |= self._owners[id(storage)][1]
