"""Where the channels of a tensor are. Convolutions put them second, token models and `Linear` last."""

from torch import Tensor, nn

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

    def find(self, module: nn.Module, output: Tensor) -> int | None:
        """Return the channel dimension of `output`, None for scalars and flat vectors."""
        if output.ndim < 2:
            return None
        shape = tuple(output.shape)
        if isinstance(module, _CHANNELS_FIRST) and output.ndim > 2:
            dim = 1
        elif isinstance(module, _CHANNELS_LAST):
            dim = output.ndim - 1
        elif type(module).__name__ == "Permute":  # torchvision's, which turns one convention into the other
            dim = list(module.dims).index(1)
        elif isinstance(module, nn.LayerNorm):
            dim = self._of_layer_norm(module, output)
        else:
            dim = self._last.get(shape, output.ndim - 1 if output.ndim == 3 else 1)
        self._last[shape] = dim
        return dim

    @staticmethod
    def _of_layer_norm(module: nn.LayerNorm, output: Tensor) -> int:
        # ConvNeXt's LayerNorm2d permutes inside and gives channels second, as its weight's length shows.
        n = module.normalized_shape[0]
        is_last = output.shape[-1] == n
        return 1 if output.ndim > 2 and output.shape[1] == n and not is_last else output.ndim - 1
