"""Hold one batch, and all batches of an input, with the device and dtype they go to."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from modelscope_cli.hooks.layers import map_tensors, tensors_in
from modelscope_cli.inputs.decoding import DecodeTiming
from modelscope_cli.inputs.image import UnreadableImage
from modelscope_cli.inputs.listing import FileList
from modelscope_cli.inputs.preprocess import Preprocessing
from modelscope_cli.records.run import Arguments, InputInfo, Notice, Shape


@dataclass(frozen=True, slots=True)
class Batch:
    """The arguments of one forward: `model(*args)`, or `model(**args)` where they are a dict.

    Attributes:
        args: on the device; floats in the model's dtype, integers as they are.
        n_images: how many images, clips or pairs. 0 where all of a block are broken: there are no arguments then.
        names: the file of each (the first of a clip or pair). Empty for noise and tensors.
        numbers: that of each in `Inputs.files`. Empty for noise and tensors.
        prepared: the arguments for the same images, prepared in each of several other ways; none of them is kept.
            None where there are no images to prepare.
        block: its number among the batches of `Inputs.make_blocks`; the same images whoever asks for it.
        broken: images of the block that could not be decoded, and are not in the batch.
    """

    args: Arguments
    n_images: int
    names: tuple[str, ...] = ()
    make_pictures: Callable[[], tuple[Tensor, ...]] = field(default=tuple, repr=False)
    prepared: Callable[[Iterable[Preprocessing]], Iterator[tuple[Any, ...]]] | None = field(
        default=None, repr=False
    )
    block: int = 0
    numbers: tuple[int, ...] = ()
    broken: tuple[UnreadableImage, ...] = ()

    @property
    def pictures(self) -> tuple[Tensor, ...]:
        """What the model sees of each of `names`, before normalisation: `(3, H, W)` uint8 on the CPU.

        Computed when asked for, as most commands never do.
        """
        return self.make_pictures()


@dataclass(frozen=True, slots=True)
class Inputs:
    """Batches that can be gone through several times, always the same; made on the way, never kept.

    Attributes:
        opened: for the record, as known before the batches were gone through; see `info`.
        n_listed: images in all batches together, those that are broken too.
        n_batches: those without an image, too.
        notes: what was decided for the person, one line each.
        preprocessing: how the images were prepared; None for noise and tensors.
        make_blocks: gives the batches with these numbers, 0 to `n_batches - 1`, in the order asked for, those
            without an image too; None where the inputs are not image files, which alone can be shared out among
            processes.
        files: the images by number; empty for noise and tensors.
        feed: what was noticed of the images so far.
        times: how often all of it is gone through.
        block_size: images in each of these batches, but for the last; 0 of noise and tensors.
    """

    opened: InputInfo
    n_listed: int
    n_batches: int
    make_batches: Callable[[], Iterator[Batch]] = field(repr=False)
    notes: tuple[str, ...] = ()
    warnings: tuple[Notice, ...] = ()
    preprocessing: Preprocessing | None = None
    make_blocks: Callable[[Iterable[int]], Iterator[Batch]] | None = field(default=None, repr=False)
    block_size: int = 0
    files: FileList = field(default_factory=lambda: FileList(()), repr=False)
    feed: DecodeTiming = field(default_factory=DecodeTiming, repr=False)
    times: int = 1

    def __iter__(self) -> Iterator[Batch]:
        """Give the batches that have images."""
        return (batch for batch in self.make_batches() if batch.n_images)

    @property
    def n_images(self) -> int:
        """How many images the model has seen or will see: those found broken so far are left out."""
        return self.n_listed - len(self.feed.broken) * self.times

    @property
    def info(self) -> InputInfo:
        """For the record: what was opened, and what has been noticed of it since."""
        return replace(self.opened, broken=self.feed.broken.kinds(), feeding=self.feed.times())


@dataclass(frozen=True, slots=True)
class ModelSide:
    """The model's side: the family decides the arguments, the device and dtype where they go."""

    family: str
    device: torch.device
    dtype: torch.dtype

    def arrange(self, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
        """Turn batched tensors into arguments: detection takes one list, its batches split into images."""
        if self.family != "detection":
            return tuple(tensors)
        return ([image for tensor in tensors for image in (tensor if tensor.ndim == 4 else [tensor])],)

    def place(self, args: Arguments) -> Any:
        """Move the tensors in arguments to the device; floats in the model's dtype."""
        return map_tensors(args, self._move)

    def _move(self, path: str, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype if tensor.is_floating_point() else tensor.dtype)


def map_arguments(args: Arguments, change: Callable[[Any], Any]) -> Arguments:
    """Return every argument changed, also those that a forward takes as one dict."""
    if isinstance(args, dict):
        return {name: change(value) for name, value in args.items()}
    return tuple(map_arguments(arg, change) if isinstance(arg, dict) else change(arg) for arg in args)


def shapes_of(args: Arguments) -> tuple[Shape, ...]:
    """Return one shape an argument, one an image where the argument is a list."""
    return tuple(tuple(tensor.shape) for _, tensor in tensors_in(args))


def names_of(args: Arguments) -> tuple[str, ...]:
    """Return the name of each of those shapes; empty where the arguments are given in order."""
    named = args[0] if isinstance(args, tuple) else args
    return tuple(path for path, _ in tensors_in(named)) if isinstance(named, dict) else ()


def count_images(args: Arguments) -> int:
    """Return the length of the batch, or of the list of images.

    Of named inputs, it is the length that most of them have, and of a tie that of the first.
    """
    named = args[0] if isinstance(args, tuple) else args
    if not isinstance(named, dict):
        return len(named)
    lengths = Counter(length for value in named.values() for length in lengths_of(value))
    return lengths.most_common(1)[0][0] if lengths else 1


def lengths_of(value: Any) -> list[int]:
    """Return the first dimension of every tensor in a value; of a list, how long it is."""
    return [len(value)] if isinstance(value, list) else [len(t) for _, t in tensors_in(value) if t.ndim]
