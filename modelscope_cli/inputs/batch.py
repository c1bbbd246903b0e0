"""One batch, all batches of an input, and the model's device and dtype."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.inputs.decoding import DecodeCounts
from modelscope_cli.inputs.files import FileList
from modelscope_cli.inputs.image import UnreadableImage
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.records.run import Arguments, InputInfo, Shape


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one forward: `model(*args)`, or `model(**args)` for a dict."""

    args: Arguments  # on the device; floats in the model's dtype, integers as they are
    n_images: int  # number of images, clips or pairs; 0 without arguments if every image of a block is broken
    # The file of each (the first of a clip or pair). Empty for noise and tensors.
    names: tuple[str, ...] = ()
    make_pictures: Callable[[], tuple[Tensor, ...]] = field(default=tuple, repr=False)
    # The arguments under other preprocessings, computed on demand; None without images
    prepared: Callable[[Iterable[Preprocessing]], Iterator[tuple[Any, ...]]] | None = field(
        default=None, repr=False
    )
    block: int = 0  # index among the batches of `Inputs.make_blocks`; always the same images
    numbers: tuple[int, ...] = ()  # index of each in `Inputs.files`. Empty for noise and tensors.
    # Returns the class of each image, `(N,)` int64, given the number of classes; None where it is unknown
    truth: Callable[[int], Tensor | None] = field(default=lambda n_classes: None, repr=False)
    # Images of the block that could not be decoded, left out of the batch
    broken: tuple[UnreadableImage, ...] = ()

    @property
    def pictures(self) -> tuple[Tensor, ...]:
        """The image of each of `names` before normalisation: `(3, H, W)` uint8 on the CPU; computed on demand."""
        return self.make_pictures()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Batches that can be iterated several times with the same result; made on demand, never kept."""

    opened: InputInfo  # for the record, as known before iterating; see `info`
    n_listed: int  # images in all batches, including broken ones
    n_batches: int  # including those without an image
    make_batches: Callable[[], Iterator[Batch]] = field(repr=False)
    notes: tuple[str, ...] = ()  # choices made automatically, one line each
    preprocessing: Preprocessing | None = None  # of the images; None for noise and tensors
    # Yields the batches with the given numbers, 0 to `n_batches - 1`, in that order, including those without
    # an image; None if not image files, as only these can be shared among processes
    make_blocks: Callable[[Iterable[int]], Iterator[Batch]] | None = field(default=None, repr=False)
    block_size: int = 0  # images per batch, except the last; 0 for noise and tensors
    # The images by number; empty for noise and tensors
    files: FileList = field(default_factory=lambda: FileList(()), repr=False)
    # Counts of decoding so far
    feed: DecodeCounts = field(default_factory=DecodeCounts, repr=False)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches that have images."""
        return (batch for batch in self.make_batches() if batch.n_images)

    @property
    def n_images(self) -> int:
        """Number of images for the model, without those found broken so far."""
        return self.n_listed - len(self.feed.broken)

    @property
    def info(self) -> InputInfo:
        """The record of what was opened, with the broken images so far."""
        return replace(self.opened, broken=self.feed.broken.kinds())


@dataclass(frozen=True, slots=True)
class ModelSide:
    """The model's family, which decides the arguments, and their device and dtype."""

    family: str
    device: torch.device
    dtype: torch.dtype

    def arrange(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Turn batched tensors into arguments; for detection one list of images."""
        if self.family != "detection":
            return tuple(tensors)
        return ([image for tensor in tensors for image in (tensor if tensor.ndim == 4 else [tensor])],)

    def place(self, args: Arguments) -> Any:
        """Move the tensors in arguments to the device, floats to the model's dtype."""
        return map_tensors(args, self._move)

    def _move(self, path: str, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def map_arguments(args: Arguments, change: Callable[[Any], Any]) -> Arguments:
    """Apply `change` to every argument, including those inside a single dict argument."""
    if isinstance(args, dict):
        return {name: change(value) for name, value in args.items()}
    return tuple(map_arguments(arg, change) if isinstance(arg, dict) else change(arg) for arg in args)


def shapes_of(args: Arguments) -> tuple[Shape, ...]:
    """Return the shape of each argument, or of each image in a list."""
    return tuple(tuple(tensor.shape) for _, tensor in tensors_in(args))


def names_of(args: Arguments) -> tuple[str, ...]:
    """Return the name of each of those shapes; empty for positional arguments."""
    named = args[0] if isinstance(args, tuple) else args
    return tuple(path for path, _ in tensors_in(named)) if isinstance(named, dict) else ()


def count_images(args: Arguments) -> int:
    """Return the length of the batch, or of the list of images.

    For named inputs, the most common length; the first one's in a tie.
    """
    named = args[0] if isinstance(args, tuple) else args
    if not isinstance(named, dict):
        return len(named)
    lengths = Counter(length for value in named.values() for length in lengths_of(value))
    return lengths.most_common(1)[0][0] if lengths else 1


def lengths_of(value: Any) -> list[int]:
    """Return the first dimension of every tensor in a value, or the length of a list."""
    return [len(value)] if isinstance(value, list) else [len(t) for _, t in tensors_in(value) if t.ndim]
