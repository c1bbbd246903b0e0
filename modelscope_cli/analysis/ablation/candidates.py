"""Which calls of a pass can be taken out, and where their channels are."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from modelscope_cli.analysis.ablation.replacement import is_replaceable
from modelscope_cli.hooks.layers import ChannelFinder
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.hooks.torch_private import leaves_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call that can be taken out.

    Attributes:
        channel_dims: where the channels are in each tensor of its output that can be replaced.
        n_channels: of the first of them.
    """

    call: Call
    channel_dims: tuple[int, ...]
    n_channels: int


class CandidateFinder(Observer):
    """Lists the selected calls of a pass that can be taken out, in the order in which they finish.

    Attributes:
        found: in the pass looked at last.
        is_looking: whether passes are looked at.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.look()

    def look(self) -> None:
        """Look at the next pass."""
        self.found: list[Candidate] = []
        self.is_looking = True
        self._channels = ChannelFinder()

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        if not self.is_looking:
            return
        self._channels.see(module, output)
        tensors = [leaf for leaf in leaves_of(output) if is_replaceable(leaf)]
        if tensors and self._selection.means(call.name, call.index, is_innermost):
            found = (self._channels.find(module, tensor) for tensor in tensors)
            dims = tuple(dim for dim in found if dim is not None)  # which two dimensions always have
            self.found.append(Candidate(call, dims, tensors[0].shape[dims[0]]))
