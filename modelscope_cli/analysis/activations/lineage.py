"""Whose channels a layer passes on, so that a dead channel is counted where it dies and not again behind that."""

from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from modelscope_cli.analysis.activations.activation import Key
from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.session import Call
from modelscope_cli.hooks.torch_private import version_of


class Lineage:
    """Follows tensors from the call that gave them into the next, by the object itself: nothing is kept alive."""

    def __init__(self) -> None:
        self._makers: dict[int, tuple[ReferenceType[Tensor], int, Key]] = {}
        self._given: dict[tuple[str, int], Key | None] = {}

    def enter(self, call: Call, module: nn.Module, inputs: Any) -> None:
        """See what a call is given, before it may change that in place."""
        if _keeps_channels_apart(module):
            given = tensors_in(inputs)
            self._given[call.name, call.index] = self._maker(given[0][1]) if len(given) == 1 else None

    def leave(self, key: Key, tensor: Tensor) -> Key | None:
        """See what it gives; return whose channels these are, None where they are its own."""
        source = self._maker(tensor) or self._given.get(key[:2])
        if not tensor.is_inference():
            self._makers[id(tensor)] = ref(tensor), version_of(tensor), key
        return source

    def _maker(self, tensor: Tensor) -> Key | None:
        """Return the call that gave a tensor, None where somebody has changed it since."""
        found = self._makers.get(id(tensor))
        if found is None or tensor.is_inference():
            return None
        maker, version, key = found
        return key if maker() is tensor and version == version_of(tensor) else None


def _keeps_channels_apart(module: nn.Module) -> bool:
    """Tell whether a channel of the output comes from the same channel of the input, and from no other: pools,
    activations, identities, batch norms."""
    if isinstance(module, nn.ChannelShuffle):
        return False
    has_own = next(module.parameters(), None) is not None or next(module.children(), None) is not None
    return not has_own or isinstance(module, _NormBase)
