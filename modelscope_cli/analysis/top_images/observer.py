"""Rank the images of a data set by their values in each channel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from modelscope_cli.analysis.spatial.fields import Output
from modelscope_cli.hooks.layers import ChannelFinder, tensors_in
from modelscope_cli.hooks.selection import Selection
from modelscope_cli.hooks.session import Call, Observer
from modelscope_cli.inputs.batch import Batch, shapes_of
from modelscope_cli.records.run import Shape


@dataclass(frozen=True, slots=True)
class TopValues:
    """For each of C channels some images with their values, `(k, C)` each."""

    values: Tensor  # float32 or float64: the largest value of the channel anywhere in the image
    images: Tensor  # int64, the number of the image; the order of numbers is that of the list
    places: Tensor  # int64, position in the output, as a flat index

    def joined(self, other: "TopValues") -> "TopValues":
        return TopValues(*(torch.cat([getattr(self, name), getattr(other, name)]) for name in self.__slots__))

    def first(self, k: int, *, is_descending: bool) -> "TopValues":
        """Return the first `k` images by value; of equal values, the image listed first."""
        order = self.images.argsort(dim=0, stable=True)
        by_value = self.values.gather(0, order).argsort(dim=0, stable=True, descending=is_descending)
        order = order.gather(0, by_value)[:k]
        return TopValues(*(getattr(self, name).gather(0, order) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ranking of images for the channels of one output; merging is commutative."""

    k: int  # number of images to keep at each end
    # most, least: the first and the last `k`, in order
    most: TopValues
    least: TopValues
    n_images: int  # number of images seen so far
    n_nan: Tensor  # number of images with a NaN in the channel, `(C,)`; they rank as minus infinity
    n_active: Tensor  # number of images with a value above 0 in the channel, `(C,)`

    @classmethod
    def of(cls, k: int, images: Sequence[int], values: Tensor, places: Tensor) -> Self:
        """Rank the images of one batch, by their numbers; `values`, `places`: `(N, C)`."""
        is_nan = values.isnan()
        numbers = torch.tensor(images, device=values.device)[:, None].expand(values.shape)
        ranked = TopValues(torch.where(is_nan, -torch.inf, values), numbers, places)
        return cls(
            k=k,
            most=ranked.first(k, is_descending=True),
            least=ranked.first(k, is_descending=False),
            n_images=len(images),
            n_nan=is_nan.sum(0),
            n_active=(values > 0).sum(0),
        )

    def merge(self, other: Self) -> Self:
        """Return the ranking of the images of both."""
        return replace(
            self,
            most=self.most.joined(other.most).first(self.k, is_descending=True),
            least=self.least.joined(other.least).first(self.k, is_descending=False),
            n_images=self.n_images + other.n_images,
            n_nan=self.n_nan + other.n_nan,
            n_active=self.n_active + other.n_active,
        )

    def is_tied(self, channel: int) -> bool:
        """Tell whether more images share the least value of a channel than are kept, as zeros after a ReLU do: then
        nothing but their order in the list chose those that are."""
        least = self.least.values[:, channel]
        n_idle = self.n_images - int(self.n_nan[channel]) - int(self.n_active[channel])
        is_equal = bool(least[0] == least[-1]) and (self.k > 1 or bool(least[0] == 0))
        return is_equal and n_idle > self.k

    def numbers(self) -> set[int]:
        """Return the number of every image that is kept."""
        return set(torch.cat([self.most.images, self.least.images]).unique().tolist())


_MOST_SEEN = 4096


@dataclass(frozen=True, slots=True)
class RankedImage:
    """An image: its number in the list, its file, its block, and the shapes of that block's inputs."""

    number: int
    name: str
    block: int
    shapes: tuple[Shape, ...]


@dataclass(slots=True)
class RankedOutput:
    """One output of one call."""

    call: Call
    output: str
    shape: Shape  # for one image; `channel_dim` is an index into it
    channel_dim: int | None = None
    problem: str | None = None
    ranking: Ranking | None = None  # None before the first image, and where there is a problem

    @property
    def key(self) -> Output:
        return self.call.name, self.call.index, self.output

    def place(self, index: int, shape: Shape) -> Shape:
        """Return the coordinates of a position in an output of this shape, by its flat index."""
        sides = [side for dim, side in enumerate(shape) if dim != self.channel_dim]
        return tuple(int(one) for one in torch.unravel_index(torch.tensor(index), sides)) if sides else ()

    def element(self, channel: int, place: Shape) -> Shape:
        """Return the index of one value of the output for one image."""
        assert self.channel_dim is not None
        return (*place[: self.channel_dim], channel, *place[self.channel_dim :])


class TopImages(Observer):
    """Ranks, for every selected output, the images by the largest value of each channel.

    Args:
        k: number of images to keep at each end.
    """

    def __init__(self, selection: Selection, k: int) -> None:
        self.watched: dict[Output, RankedOutput] = {}  # by output, in the order of their first calls
        self.n_images = 0  # images seen so far
        self._selection = selection
        self._k = k
        self._channels = ChannelFinder()
        self._numbers: list[int] = []
        self._seen: dict[int, RankedImage] = {}
        self._most_seen = _MOST_SEEN

    def begin(self, batch: Batch) -> None:
        """Set the images of the next forward."""
        self._numbers = list(batch.numbers)
        shapes = shapes_of(batch.args)
        for number, name in zip(batch.numbers, batch.names, strict=True):
            self._seen[number] = RankedImage(number, name, batch.block, shapes)
        self.n_images += batch.n_images
        self._forget()

    def image(self, number: int) -> RankedImage:
        return self._seen[number]

    def leave(self, call: Call, module: nn.Module, inputs: Any, output: Any, is_innermost: bool) -> None:
        outputs = tensors_in(output)
        dims = [self._channels.find(module, tensor) for _, tensor in outputs]
        if not self._selection.means(call.name, call.index, is_innermost):
            return
        for (path, tensor), dim in zip(outputs, dims, strict=True):
            self._take(call, path, tensor.detach(), dim)

    def pass_by(self, module: nn.Module, output: Any) -> None:
        self._channels.see(module, output)

    def _take(self, call: Call, path: str, tensor: Tensor, dim: int | None) -> None:
        key = (call.name, call.index, path)
        watched = self.watched.get(key)
        if watched is None:
            watched = RankedOutput(call, path, tuple(tensor.shape[1:]))
            watched.problem = _problem_of(tensor, dim, len(self._numbers))
            watched.channel_dim = dim - 1 if dim and not watched.problem else None
            self.watched[key] = watched
        if watched.problem is not None:
            return
        values, places = largest(tensor, dim)
        ranking = Ranking.of(self._k, self._numbers, values, places)
        watched.ranking = watched.ranking.merge(ranking) if watched.ranking is not None else ranking

    def _forget(self) -> None:
        """Forget the images that no ranking keeps, once there are many."""
        if len(self._seen) < self._most_seen:
            return
        needed = {n for one in self.watched.values() if one.ranking for n in one.ranking.numbers()}
        needed.update(self._numbers)
        self._seen = {number: image for number, image in self._seen.items() if number in needed}
        self._most_seen = 2 * len(self._seen) + _MOST_SEEN


def largest(tensor: Tensor, dim: int | None) -> tuple[Tensor, Tensor]:
    """Return the largest value of each channel in each image and the index of its first position.

    Args:
        tensor: `(N, ...)` with channels in dimension `dim`.

    Returns:
        `(N, C)` float32 (float64 where the tensor is) and int64; NaN where a channel holds one.
    """
    assert dim is not None
    channels = tensor.movedim(dim, 1).flatten(2) if tensor.ndim > 2 else tensor[:, :, None]
    values, places = channels.max(2)
    return values.to(torch.float64 if values.dtype == torch.float64 else torch.float32), places


def _problem_of(tensor: Tensor, dim: int | None, n_images: int) -> str | None:
    """Return why images cannot be ranked by an output; None if they can."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return "only floating-point outputs can be ranked"
    if not dim or len(tensor) != n_images:
        return "its first dimension is not the images"
    return None if tensor.numel() else "it is empty"
