"""Where the channels of a tensor are. Convolutions put them second, token models and `Linear` last."""

from typing import Any

from torch import Tensor, nn

from modelscope_cli.hooks.layers import tensors_in

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
    """Say which dimension of an output holds the channels.

    Layers that know nothing of channels (activations, dropout, blocks) inherit the answer from the last layer
    that gave an output of the same shape; failing that, `(N, L, C)` is read as tokens, anything else as
    channels second.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, ...], int] = {}

    def see(self, module: nn.Module, output: Any) -> None:
        """Remember where a layer's channels are, for the layers behind it."""
        for _, tensor in tensors_in(output):
            self.find(module, tensor)

    def find(self, module: nn.Module | None, output: Tensor) -> int | None:
        """Return the channel dimension of `output`, None for scalars and flat vectors.

        Args:
            module: the layer that gave it; None for a function, which is like a layer that knows nothing.
        """
        if output.ndim < 2:
            return None
        shape = tuple(output.shape)
        if isinstance(module, _CHANNELS_FIRST) and output.ndim > 2:
            dim = 1
        elif isinstance(module, _CHANNELS_LAST):
            dim = output.ndim - 1
        elif type(module).__name__ == "Permute":  # torchvision's, which turns one convention into the other
            dims: Any = getattr(module, "dims")  # noqa: B009  # of a class that need not be imported
            dim = _of_permute([dim % output.ndim for dim in dims])
        elif isinstance(module, nn.LayerNorm):
            dim = _of_layer_norm(module, output)
        else:
            dim = self._last.get(shape, output.ndim - 1 if output.ndim == 3 else 1)
        self._last[shape] = dim
        return dim


def _of_permute(dims: list[int]) -> int:
    return 1 if dims[1] == len(dims) - 1 else dims.index(1)


def _of_layer_norm(module: nn.LayerNorm, output: Tensor) -> int:
    """Channels last, except where a norm over several dimensions begins with them, or where a subclass such
    as ConvNeXt's LayerNorm2d permutes inside: its forward is its own, and dimension 1 has its length."""
    if output.ndim < 4:
        return output.ndim - 1
    is_plain = type(module).forward is nn.LayerNorm.forward
    begins_second = len(module.normalized_shape) == output.ndim - 1
    fits_second = not is_plain and output.shape[1] == module.normalized_shape[0]
    return 1 if begins_second or fits_second else output.ndim - 1
