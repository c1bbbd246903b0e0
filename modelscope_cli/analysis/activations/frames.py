"""Statistics of every frame of a clip, or slice of a volume."""

from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from torch import Tensor, nn

from modelscope_cli.analysis.spatial.positions import fitting
from modelscope_cli.analysis.statistics.moments import RANGE_AND_ZEROS, Moments
from modelscope_cli.analysis.statistics.reduce import reduce_tensor
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, HookSession, Intervention, Observer
from modelscope_cli.inputs.batch import Batch
from modelscope_cli.records.stats import FrameStats


def _figures(one: Moments) -> dict[str, Any]:
    counts = {"nan_count": one.n_nan, "inf_count": one.n_inf}
    if not one.n:
        return counts
    figures = {"mean": one.mean, "std": one.std, "min": one.low, "max": one.high, "rms": one.rms}
    return {**counts, **figures, "zero_fraction": (one.n_zero or 0) / one.n}


class FrameObserver(Observer):
    """Reduces the outputs of the observed calls frame by frame; those without frames are left out.

    Attributes:
        n_images: of the current batch.
        pending: by name, call and path of an output its call, and the moments of every frame, still on the device.
    """

    def __init__(self, n_frames: int, *, is_innermost_only: bool) -> None:
        self.n_images = 1
        self.pending: dict[tuple[str, int, str], tuple[Call, list[list[Callable[[], Moments]]]]] = {}
        self._n_frames, self._is_innermost_only = n_frames, is_innermost_only
        self._channels = ChannelFinder()
        self._grids: list[tuple[int, ...]] = []  # of outputs (N, C, T, H, W), for tokens made of them

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        for path, tensor in tensors_in(output):
            frames = self._by_frame(tensor, self._channels.find(module, tensor))
            is_skipped = self._is_innermost_only and not is_innermost
            if frames is None or is_skipped or tensor.is_complex() or not tensor.numel():
                continue
            _, pending = self.pending.setdefault((call.name, call.index, path), (call, []))
            pending += [[] for _ in range(len(frames) - len(pending))]
            for frame, seen in zip(frames, pending, strict=False):
                seen.append(reduce_tensor(frame, None, RANGE_AND_ZEROS))

    def pass_by(self, module: nn.Module, output: Any) -> None:
        for _, tensor in tensors_in(output):
            self._by_frame(tensor, self._channels.find(module, tensor))

    def _by_frame(self, tensor: Tensor, channel_dim: int | None) -> Tensor | None:
        """Return an output with its frames as the first dimension; None where it has none."""
        n = self._n_frames
        if tensor.ndim == 5:
            dim = 1 if channel_dim == 4 else 2
            self._grids += [tuple(tensor.shape[2:])] if dim == 2 else []
            return tensor.movedim(dim, 0)
        if n > 1 and tensor.ndim > 1 and len(tensor) == n * self.n_images:  # every frame as an image
            return tensor.unflatten(0, (-1, n)).movedim(1, 0)
        if tensor.ndim != 3 or channel_dim != 2:
            return None
        grid, n_extra = next(iter(fitting(tensor.shape[1], self._grids, None)), (None, 0))
        if grid is not None and self._grids:
            return tensor[:, n_extra:].unflatten(1, grid).movedim(1, 0)
        return tensor.movedim(1, 0) if tensor.shape[1] == n else None


def observe_frames(
    model: nn.Module,
    batches: Iterable[Batch],
    selection: Selection,
    n_frames: int,
    *,
    is_training: bool = False,
    interventions: Iterable[Intervention] = (),
) -> tuple[FrameStats, ...]:
    """Run every batch once; return a row for each frame of each output, in execution order.

    Args:
        n_frames: of one input; outputs may have fewer, each of which then covers several.
    """
    observer = FrameObserver(n_frames, is_innermost_only=selection.is_innermost_only)
    wanted, names = selection.wanted, selection.names
    how: dict[str, Any] = {"is_training": is_training, "interventions": tuple(interventions)}
    with HookSession(model, [observer], wanted=wanted, names=names, **how) as session:
        for batch in batches:
            observer.n_images = batch.n_images
            session.run(batch.args)
    in_order = sorted(observer.pending.items(), key=lambda item: item[1][0].order)
    return tuple(
        FrameStats(
            **call.fields,
            output=path,
            frame=number,
            frames=len(frames),
            **_figures(reduce(Moments.merge, (finish() for finish in seen))),
        )
        for (_, _, path), (call, frames) in in_order
        for number, seen in enumerate(frames)
    )
