"""List the layers of a model, find the tensors in their inputs and outputs, and the channels of a tensor.

Convolutions have the channels second, token models and `Linear` last.
"""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from modelscope_cli.errors import CannotRunError
from modelscope_cli.hooks.patterns import Layer
from modelscope_cli.hooks.torch_private import PLAIN, children_of, is_compiled


def list_layers(model: nn.Module, *, with_parts: bool = False) -> list[tuple[Layer, nn.Module]]:
    """Return every distinct module with its first name, parents before children; the model itself first.

    Modules that `torch.nn.utils.parametrize` adds to a layer are parts of it, listed only `with_parts`.
    """
    names: dict[nn.Module, list[str]] = {}
    hidden = set() if with_parts else {id(part) for module in model.modules() for part in _parts(module)}
    in_attention = {
        id(child)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        for child in module.children()
    }
    for name, module in model.named_modules(remove_duplicate=False):
        if id(module) not in hidden:
            names.setdefault(module, []).append(name)
    return [
        (
            Layer(
                name=first,
                type=type_of(module),
                is_leaf=_is_leaf(module),
                depth=first.count(".") + 1 if first else 0,
                aliases=tuple(others),
                # The linear layer in an attention only holds its weight.
                bases=() if id(module) in in_attention else _bases(module),
            ),
            module,
        )
        for module, (first, *others) in names.items()
    ]


def type_of(module: nn.Module) -> str:
    """Return the name of a layer's class before it was parametrized or scripted."""
    if isinstance(module, torch.jit.ScriptModule):
        return str(getattr(module, "original_name", type(module).__name__))
    if _is_of_program(module):
        return (module.type_name() or type(module).__name__).rpartition(".")[2]  # type: ignore[operator]
    return parametrize.type_before_parametrizations(module).__name__


def _is_of_program(module: nn.Module) -> bool:
    """Tell whether a module is of a program that torch.export took apart into layers again."""
    return type(module).__module__ == "torch.export.unflatten" and hasattr(module, "type_name")


def set_training(model: nn.Module, is_training: bool) -> None:
    """Switch a model to train or eval mode; exported programs keep theirs."""
    try:
        if is_training and any(map(_is_of_program, model.modules())):
            raise NotImplementedError
        model.train(is_training)
    except NotImplementedError as error:
        if is_training:
            message = "a torch.export program runs in the mode it was exported in, not in train mode"
            raise CannotRunError(message, "--mode eval") from error
        for module in model.modules():
            module.training = False


_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")


def without_gradient(model: nn.Module) -> str | None:
    """Return a message that names a quantized layer of a model; None without one."""
    for layer, module in list_layers(model):
        is_float = layer.type == "FloatFunctional"  # placeholder in a model prepared for quantization
        if type(module).__module__.startswith(_QUANTIZED) and not is_float:
            return f"layer '{layer.name}' ({layer.type}) is quantized: integers have no gradient"
    return None


def refuse_layouts(model: nn.Module, *, is_sparse_known: bool = True, has_buffers: bool = False) -> None:
    """Refuse parameters of a layout that cannot be reduced: nested, and sparse unless `is_sparse_known`."""
    for name, parameter in (*model.named_parameters(), *(model.named_buffers() if has_buffers else ())):
        if is_lazy(parameter) or (parameter.layout == torch.strided and not parameter.is_nested):
            continue
        if parameter.is_nested or not is_sparse_known:
            kind = "nested" if parameter.is_nested else str(parameter.layout).removeprefix("torch.")
            message = f"tensor '{name}' is {kind}, but this command needs dense tensors"
            raise CannotRunError(message, "modelscope stats ...   needs none")


def not_looked_into(model: nn.Module) -> Iterator[str]:
    """Yield one sentence for each part of a model that cannot be observed."""
    for layer, module in list_layers(model):
        name = layer.name or "the model"
        if isinstance(module, torch.fx.GraphModule) and "train" in vars(module):
            yield f"torch.export: {name} is an exported program, which calls operators and not layers"
        elif is_compiled(module):
            yield f"torch.compile: {name} is inspected uncompiled"


def _bases(module: nn.Module) -> tuple[str, ...]:
    every = parametrize.type_before_parametrizations(module).__mro__
    return tuple(kind.__name__ for kind in every[1:] if issubclass(kind, nn.Module) and kind is not nn.Module)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules inside a layer that do not count as layers."""
    if isinstance(module, torch.fx.GraphModule):
        yield from (one for name, one in module.named_children() if name == "_guards_fn")  # of torch.export
    elif parametrize.is_parametrized(module):
        yield from module.get_submodule("parametrizations").modules()


def _is_leaf(module: nn.Module) -> bool:
    # MultiheadAttention's only child holds a weight for the attention and never runs.
    if isinstance(module, nn.MultiheadAttention):
        return True
    parts = {"parametrizations"} if parametrize.is_parametrized(module) else set()
    return all(name in parts for name, _ in module.named_children())


def tensors_in(value: Any) -> list[tuple[str, torch.Tensor]]:
    """Flatten a layer's output (or its arguments) into `(path, tensor)` pairs.

    The path is empty for a single tensor, `0` or `out` for an entry, `0.boxes` for a nested one. Tuples, lists,
    dicts, named tuples, dataclasses and nested tensors are flattened; other values are skipped.
    """
    if type(value) is torch.Tensor and not value.is_nested:
        return [("", value)]
    return list(_walk(value, ""))


def _walk(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.is_nested:  # only its parts have shapes
            yield from _walk(value.unbind(), path)
        else:
            yield path, value
    elif type(value) in (tuple, list, dict):  # as usual, without a search through the kinds of containers
        for key, child in value.items() if type(value) is dict else enumerate(value):
            if not isinstance(child, PLAIN):
                yield from _walk(child, _join(path, str(key)))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _walk(getattr(value, field.name), _join(path, field.name))
    else:
        children, _ = children_of(value) or ((), None)
        for key, child in children:
            yield from _walk(child, _join(path, key))


def map_tensors(value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], path: str = "") -> Any:
    """Return `value` with every tensor in it replaced by `change(path, tensor)`, in the order of `tensors_in`.

    Tuples, lists, dicts, named tuples and dataclasses keep their types; if nothing is replaced, `value` itself is
    returned. A nested tensor is passed whole.
    """
    if isinstance(value, torch.Tensor):
        return change(path, value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        fields = [getattr(value, name) for name in names]
        changed = [
            map_tensors(old, change, _join(path, name)) for name, old in zip(names, fields, strict=True)
        ]
        if all(new is old for new, old in zip(changed, fields, strict=True)):
            return value
        copied = copy.copy(value)
        for name, new in zip(names, changed, strict=True):
            try:
                setattr(copied, name, new)  # for dataclasses that are dicts, too, update both
            except dataclasses.FrozenInstanceError:
                object.__setattr__(copied, name, new)
        return copied
    container = children_of(value)
    if container is None:
        return value
    children, remake = container
    changed = [map_tensors(child, change, _join(path, key)) for key, child in children]
    if all(new is old for new, (_, old) in zip(changed, children, strict=True)):
        return value
    return remake(changed)


def cloned(value: Any) -> Any:
    """Return `value` with a copy of every tensor, as a model may write into its inputs."""
    return map_tensors(value, lambda _, tensor: tensor.clone())


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


_CHANNELS_FIRST = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
    nn.Upsample,
    nn.PixelShuffle,
)
_CHANNELS_LAST = (nn.Linear, nn.MultiheadAttention, nn.Embedding)


class ChannelFinder:
    """Finds the channel dimension of an output.

    Layers without channels (activations, dropout, blocks) inherit it from the last layer with an output of the same
    shape; else `(N, L, C)` is read as tokens, anything else as channels second.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}

    def see(self, module: nn.Module, output: Any) -> None:
        """Record a layer's channel dimension, for the following layers."""
        for _, tensor in tensors_in(output):
            self.find(module, tensor)

    def find(self, module: nn.Module | None, output: Tensor) -> int | None:
        """Return the channel dimension of `output`, None for scalars and flat vectors.

        Args:
            module: the layer that produced it; None for a function, treated as a layer without channels.
        """
        if output.ndim < 2:
            return None
        shape = tuple(output.shape)
        if isinstance(module, _CHANNELS_FIRST) and output.ndim > 2:
            dim = 1
        elif isinstance(module, _CHANNELS_LAST):
            dim = output.ndim - 1
        elif type(module).__name__ == "Permute":  # torchvision's, which converts between the conventions
            given: Any = getattr(module, "dims")  # noqa: B009  # of a class that need not be imported
            dims = [dim % output.ndim for dim in given]
            dim = 1 if dims[1] == len(dims) - 1 else dims.index(1)
        elif isinstance(module, nn.LayerNorm):
            dim = _of_layer_norm(module, output)
        else:
            dim = self._last.get(shape, output.ndim - 1 if output.ndim == 3 else 1)
        self._last[shape] = dim
        return dim


def _of_layer_norm(module: nn.LayerNorm, output: Tensor) -> int:
    """Return the last dimension, except for a norm over several dimensions, which begins with the channels, or a
    subclass with its own forward such as ConvNeXt's LayerNorm2d, where dimension 1 has its length."""
    if output.ndim < 4:
        return output.ndim - 1
    is_plain = type(module).forward is nn.LayerNorm.forward
    begins_second = len(module.normalized_shape) == output.ndim - 1
    fits_second = not is_plain and output.shape[1] == module.normalized_shape[0]
    return 1 if begins_second or fits_second else output.ndim - 1
