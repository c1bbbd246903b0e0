"""Training data: a folder with one subfolder of images per class, the drawn sample set, or loaders."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.files import IMAGE_SUFFIXES
from modelscope_cli.inputs.image import decode
from modelscope_cli.inputs.listing import ListedImage
from modelscope_cli.lean import without_dynamo
from modelscope_cli.records.run import InputInfo, Notice, Shape
from modelscope_cli.records.train import DataInfo
from modelscope_cli.training.loaders import LoaderData
from modelscope_cli.training.runner import LabelledBatch
from modelscope_cli.training.shapes import CLASSES, SEEDS_APART, render

with without_dynamo():
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import functional as transforms

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NORMALISED = f"mean {_MEAN}, std {_STD}"
_HELD_OUT_SHARE = 0.1
Example = tuple[Tensor, int] | None


def normalise(picture: Tensor) -> Tensor:
    """Normalise an image `(3, H, W)` of 0..1 with the mean and std of ImageNet."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (_MEAN, _STD))
    return (picture - mean) / std


class DrawnPictures(Dataset[Example]):
    """The sample set as normalised tensors `(3, size, size)`; the same images as `Shapes`."""

    def __init__(self, count: int, seed: int, size: int) -> None:
        self.count, self.seed, self.size = count, seed, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        label = index % len(CLASSES)
        return normalise(render(label, self.seed * SEEDS_APART + index, self.size)), label


class FolderPictures(Dataset[Example]):
    """Images from disk, resized and centre-cropped to `(3, size, size)`; None for an unreadable one.

    Attributes:
        unreadable: error by file, of the files that could not be decoded.
    """

    def __init__(self, files: Sequence[tuple[str, int]], size: int) -> None:
        self.files, self.size = files, size
        self.unreadable: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Example:
        path, label = self.files[index]
        try:
            picture = decode(ListedImage(path), "RGB")
        except CannotRunError as error:
            self.unreadable[path] = error.message
            return None
        picture = transforms.center_crop(transforms.resize(picture, [self.size]), [self.size])
        return normalise(transforms.to_tensor(picture)), label


class DataSource(Protocol):
    """Labelled batches to train on and to validate on.

    Attributes:
        source: description.
        classes: their names, in the order of the labels; empty if unknown.
        n_classes: number of scores the model needs; None to keep those it has.
        starts_anew: whether every training sees the same batches.
    """

    @property
    def source(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def n_classes(self) -> int | None: ...
    @property
    def starts_anew(self) -> bool: ...
    @property
    def has_held_out(self) -> bool: ...
    def batches(self, batch: int, seed: int) -> Iterable[LabelledBatch]:
        """Return the training batches, in seeded order."""

    def held_out_batches(self) -> Iterable[LabelledBatch]:
        """Return the validation batches."""

    def info(self, shape: Shape) -> DataInfo:
        """Describe the data for the record, with the files skipped so far; `shape` is that of one batch."""

    def input_info(self, shape: Shape) -> InputInfo:
        """Describe one batch for the header of the record."""

    def warnings(self) -> tuple[Notice, ...]:
        """Warn of the files that could not be read so far."""

    def as_found(self) -> AbstractContextManager[None]:
        """Restore the data on exit, so that the next training sees the same."""


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Images to train on and to validate on.

    Attributes:
        preprocessing: description.
        classes: their names, in the order of the labels.
        unreadable: the files skipped so far, with their errors; grows while the data are read.
    """

    source: str
    preprocessing: str
    size: int
    classes: tuple[str, ...]
    training: Dataset[Example]
    held_out: Dataset[Example]
    n_training: int
    n_held_out: int
    unreadable: dict[str, str] = field(default_factory=dict)

    def batches(self, batch: int, seed: int) -> "Batches":
        """Return the training images in seeded order, a different one every epoch."""
        return Batches(self.training, min(batch, self.n_training), seed)

    def held_out_batches(self) -> "Batches":
        return Batches(self.held_out, 100, None)

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    starts_anew = has_held_out = True

    def info(self, shape: Shape) -> DataInfo:
        return DataInfo(
            source=self.source,
            classes=self.classes,
            training_pictures=self.n_training,
            held_out_pictures=self.n_held_out,
            size=self.size,
            skipped=tuple(sorted(self.unreadable)),
        )

    def input_info(self, shape: Shape) -> InputInfo:
        return InputInfo("image", (shape,), (), self.preprocessing)

    def warnings(self) -> tuple[Notice, ...]:
        if not self.unreadable:
            return ()
        total = self.n_training + self.n_held_out
        n, first = len(self.unreadable), min(self.unreadable)
        what = f"{n} of {total} images could not be read and were skipped: {self.unreadable[first]}"
        return (Notice("unreadable_pictures", what + (f" and {n - 1} more" if n > 1 else "")),)

    def as_found(self) -> AbstractContextManager[None]:
        return nullcontext()


class Batches:
    """Batches `((N, 3, H, W), (N,))` of a data set. With a seed they are shuffled and an incomplete last batch is
    dropped: batch norm cannot take a batch of one."""

    def __init__(self, examples: Dataset[Example], batch: int, seed: int | None) -> None:
        is_shuffled = seed is not None
        self._loader: DataLoader[LabelledBatch | None] = DataLoader(
            cast("Dataset[Any]", examples),
            batch_size=batch,
            shuffle=is_shuffled,
            drop_last=is_shuffled,
            collate_fn=_collate,
            generator=torch.Generator().manual_seed(seed or 0),
        )

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[LabelledBatch]:
        is_empty = True
        for batch in self._loader:
            if batch is not None:
                is_empty = False
                yield batch
        if is_empty:
            raise CannotRunError(
                "not one image could be read", "give a folder with one folder of images for each class"
            )


def _collate(examples: list[Example]) -> LabelledBatch | None:
    found = [example for example in examples if example is not None]
    if not found:
        return None
    return torch.stack([picture for picture, _ in found]), torch.tensor([label for _, label in found])


def open_data(data: Any, pictures: int, size: int, seed: int) -> DataSource:
    """Open the data: None for `pictures` drawn shapes, a folder, a loader or a pair of loaders."""
    if data is None:
        return open_drawn(pictures, size, seed)
    if isinstance(data, str | PathLike):
        return open_folder(Path(data), size, seed)
    first = data[0] if isinstance(data, tuple) and data else data
    return LoaderData(data, type(first).__name__)


def open_drawn(count: int, size: int, seed: int) -> TrainingData:
    """Return the drawn sample set of `count` images, and a tenth as many of another seed to validate on."""
    n_held_out = max(1, round(count * _HELD_OUT_SHARE))
    return TrainingData(
        source="drawn shapes",
        preprocessing=f"drawn at {size}x{size}, {_NORMALISED}",
        size=size,
        classes=CLASSES,
        training=DrawnPictures(count, 2 * seed, size),
        held_out=DrawnPictures(n_held_out, 2 * seed + 1, size),
        n_training=count,
        n_held_out=n_held_out,
    )


def open_folder(folder: Path, size: int, seed: int) -> TrainingData:
    """Open a folder with one subfolder of images per class; a seeded tenth of the images is held out."""
    here = f"ls {shlex.quote(str(folder))}"
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise CannotRunError(f"'{folder}' {what}", f"ls {shlex.quote(str(folder.parent))}")
    try:
        found = ImageFolder(str(folder), is_valid_file=_is_picture, allow_empty=True)
    except FileNotFoundError as error:
        message = f"'{folder}' holds no folders: it needs one for each class, with its images"
        raise CannotRunError(message, here) from error
    files = found.samples
    filled = sorted({label for _, label in files})
    if not files:
        raise CannotRunError(f"the folders in '{folder}' hold no images", here)
    if len(filled) == 1:
        name = found.classes[filled[0]]
        message = f"'{folder}' holds images of one class only, '{name}': there is nothing to tell apart"
        raise CannotRunError(message, here)
    labels = {old: new for new, old in enumerate(filled)}  # an empty folder is not a class
    pictures = FolderPictures([(path, labels[label]) for path, label in files], size)
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(seed)).tolist()
    n_held_out = max(1, round(len(files) * _HELD_OUT_SHARE))
    return TrainingData(
        source=str(folder),
        preprocessing=f"short side to {size}, centre crop {size}x{size}, {_NORMALISED}",
        size=size,
        classes=tuple(found.classes[label] for label in filled),
        training=Subset(pictures, sorted(order[n_held_out:])),
        held_out=Subset(pictures, sorted(order[:n_held_out])),
        n_training=len(files) - n_held_out,
        n_held_out=n_held_out,
        unreadable=pictures.unreadable,
    )


def _is_picture(path: str) -> bool:
    return Path(path).suffix.lower() in IMAGE_SUFFIXES
