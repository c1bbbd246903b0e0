"""Find aliases of tensors that a user's function has changed in place.

`Identity`, `Flatten` and dropout in eval mode return their input, and both branches of an addition get the same
gradient tensor, so in-place changes affect other readers.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from modelscope_cli.hooks.layers import tensors_in
from modelscope_cli.hooks.torch_private import version_of


@dataclass(frozen=True, slots=True)
class _Sight:
    layer: str
    words: str
    tensor: "weakref.ref[Tensor]"
    version: int


class SharedValues:
    """Records where tensors were seen in a pass, by their memory, without keeping them alive."""

    def __init__(self) -> None:
        self._seen: dict[int, list[_Sight]] = {}

    def clear(self) -> None:
        self._seen.clear()

    def see(self, layer: str, words: str, value: Any) -> None:
        """Record the tensors in `value`, which is `words` (an input, an output) of a layer."""
        for _, tensor in tensors_in(value):
            if memory := memory_of(tensor):
                sight = _Sight(layer, f"{words} of {layer}", weakref.ref(tensor), version_of(tensor))
                self._seen.setdefault(memory, []).append(sight)

    def others(self, layer: str, tensor: Tensor, version: int) -> Iterable[str]:
        """Yield what shares the memory of a tensor changed at `layer` when it was at `version`.

        Except tensors overwritten by the model before, tensors already freed, and those inside the layer.
        """
        for sight in self._seen.get(memory_of(tensor), ()):
            other = sight.tensor()
            is_intact = (
                other is not None and sight.version == version and memory_of(other) == memory_of(tensor)
            )
            if is_intact and not sight.layer.startswith(f"{layer}."):
                yield sight.words


class SharedGradients:
    """Follows the gradients of a backward pass through its operations, and records those with several users.

    A gradient is kept only until all of its users have run.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = {id(p): name for name, p in model.named_parameters()}
        self._nodes: dict[Node, str] = {}
        self._waiting: dict[int, tuple[Tensor, dict[Node, None]]] = {}
        self._handles: list[RemovableHandle] = []

    def clear(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._nodes.clear()
        self._waiting.clear()

    def see(self, layer: str, words: str, value: Any) -> None:
        """Record which operations produced the tensors in `value`; the first name, that of an output, wins."""
        for _, tensor in tensors_in(value):
            node = node_of(tensor)
            if node is not None:
                self._nodes.setdefault(node, f"{words} of {layer}")

    def follow(self, output: Any) -> None:
        """Attach to every operation in the graph of a model's output."""
        todo = [node for _, tensor in tensors_in(output) if (node := node_of(tensor)) is not None]
        visited: set[Node] = set()
        while todo:
            node = todo.pop()
            if node not in visited:
                visited.add(node)
                todo += [before for before, _ in node.next_functions if before is not None]
        for node in visited:
            self._handles.append(node.register_hook(partial(self._pass_on, node)))

    def _pass_on(self, node: Node, given: tuple[Tensor | None, ...], arrived: object) -> None:
        """Record that an operation has used the incoming gradient and passes on `given`."""
        for memory in list(self._waiting):
            _, nodes = self._waiting[memory]
            nodes.pop(node, None)
            if not nodes:
                del self._waiting[memory]
        for grad, (target, _) in zip(given, node.next_functions, strict=False):
            if grad is not None and target is not None and memory_of(grad):
                _, nodes = self._waiting.setdefault(memory_of(grad), (grad, {}))
                nodes[target] = None

    def others(self, grad: Tensor, own: frozenset[Node]) -> Iterable[str]:
        """Yield the pending users of a changed gradient, except the operations `own`."""
        _, nodes = self._waiting.get(memory_of(grad), (grad, {}))
        for node in nodes:
            if node not in own and "BackwardHookFunction" not in node.name():
                yield f"the gradient at {self._name(node)}"

    def _name(self, node: Node) -> str:
        if node in self._nodes:
            return self._nodes[node]
        parameter = self._parameters.get(id(getattr(node, "variable", None)))
        return f"the parameter {parameter}" if parameter else f"the operation {node.name()}"


def node_of(tensor: Tensor) -> Node | None:
    """Return the operation that receives the gradient of a tensor; None without one."""
    return get_gradient_edge(tensor).node if tensor.requires_grad else None


def memory_of(tensor: Tensor) -> int:
    """Return the address of a tensor's storage; 0 if it has none to share."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else 0
