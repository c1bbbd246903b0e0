"""Outputs frame by frame: of the frames of a clip, or the slices of a volume."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from modelscope_cli.analysis.activations.arranged import fitting
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in


class FrameSplitter:
    """Splits outputs into frames.

    Args:
        n_frames: of one input; an output may have fewer, each of which then covers several. 0 splits nothing.
    """

    def __init__(self, n_frames: int) -> None:
        self._n_frames = n_frames
        self._n_images = 1
        self._channels = ChannelFinder()
        self._grids: list[tuple[int, ...]] = []  # of outputs (N, C, T, H, W), for tokens made of them

    def begin(self, n_images: int) -> None:
        """Begin a batch."""
        self._n_images, self._channels = n_images, ChannelFinder()

    def split(self, path: str, output: Tensor, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield the frames of an output with their paths; nothing for one without frames."""
        if self._n_frames:
            frames = self._by_frame(output, self._channels.find(module, output))
            for number, frame in enumerate(frames if frames is not None else ()):
                yield f"{path} frame {number}".strip(), frame

    def see(self, module: nn.Module, output: Any) -> None:
        """Note an output that is not wanted, for the following layers."""
        if self._n_frames:
            for _, tensor in tensors_in(output):
                self._by_frame(tensor, self._channels.find(module, tensor))

    def _by_frame(self, tensor: Tensor, channel_dim: int | None) -> Tensor | None:
        """Return an output with its frames as the first dimension; None where it has none."""
        n = self._n_frames
        if tensor.ndim == 5:
            dim = 1 if channel_dim == 4 else 2
            grid = tuple(tensor.shape[2:])
            self._grids += [grid] if dim == 2 and grid not in self._grids else []
            return tensor.movedim(dim, 0)
        if n > 1 and tensor.ndim > 1 and len(tensor) == n * self._n_images:  # every frame as an image
            return tensor.unflatten(0, (-1, n)).movedim(1, 0)
        if tensor.ndim != 3 or channel_dim != 2:
            return None
        fits = fitting(tensor.shape[1], self._grids, None) if self._grids else []
        if fits:
            grid, n_extra = fits[0]
            return tensor[:, n_extra:].unflatten(1, grid).movedim(1, 0)
        return tensor.movedim(1, 0) if tensor.shape[1] == n else None
