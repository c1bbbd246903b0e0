"""What is a criterion: a module that says how wrong a prediction is, and is not a layer of the model."""

from collections import deque
from typing import Any

from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in


def is_criterion(module: nn.Module, output: Any) -> bool:
    """Tell a loss from a layer by what one call returned: numbers without an axis, made of what a model computed.

    A model that returns its own loss makes it of its own parameters; a head that does so has layers that are
    trained. Neither is a criterion. Parameters that it has itself, such as the weights of its terms, do not matter.
    """
    if any(kind.__module__ == "torch.nn.modules.loss" for kind in type(module).__mro__):
        return True  # also one that leaves the mean to the script
    if isinstance(output, Tensor) and output.ndim:
        return False
    made = [tensor for _, tensor in tensors_in(output)]
    if not made or any(tensor.ndim for tensor in made):
        return False
    is_head = any(parameter.requires_grad for child in module.children() for parameter in child.parameters())
    return not is_head and any(_is_made_of_others(tensor, module) for tensor in made)


def _is_made_of_others(loss: Tensor, module: nn.Module) -> bool:
    """Tell whether parameters that are not the module's own had a part in it."""
    own = {id(parameter) for parameter in module.parameters()}
    nodes = deque([loss.grad_fn] if loss.grad_fn is not None else [])
    seen = set(nodes)
    while nodes:
        node = nodes.popleft()
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, nn.Parameter) and id(leaf) not in own:
            return True
        inputs = {other for other, _ in node.next_functions if other is not None} - seen
        seen |= inputs
        nodes.extend(inputs)
    return False
