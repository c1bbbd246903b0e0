"""Training data: a folder with one subfolder of images per class, the drawn sample set, or loaders."""

import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from modelscope_cli.errors import CannotRunError, quoted
from modelscope_cli.inputs.files import ListedImage, is_picture
from modelscope_cli.inputs.image import decode
from modelscope_cli.lean import without_dynamo
from modelscope_cli.paths import look_for
from modelscope_cli.records.naming import some
from modelscope_cli.records.run import InputInfo, Notice, Shape
from modelscope_cli.records.train import DataInfo
from modelscope_cli.training.loaders import LoaderData, import_loaders
from modelscope_cli.training.runner import LabelledBatch

SIZE = 96
"""Default side of an image in pixels."""

SEEDS_APART = 1_000_003
"""The images of a set have consecutive seeds, so sets start far from each other."""

Distance = Callable[[Tensor, Tensor], Tensor]
"""From x and y of each pixel (any shape) to its signed distance, negative inside of the outline."""


def circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.9


def square(x: Tensor, y: Tensor) -> Tensor:
    return box(x, y, 0.8, 0.8)


def triangle(x: Tensor, y: Tensor) -> Tensor:
    slanted = x.abs() * math.cos(math.pi / 6) - y * math.sin(math.pi / 6)
    return torch.maximum(slanted, y) - 0.5


def star(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance to a star of five points: folding the plane leaves one straight edge."""
    turn = torch.atan2(x, -y).remainder(2 * math.pi / 5)
    turn = torch.minimum(turn, 2 * math.pi / 5 - turn)
    radius = torch.hypot(x, y)
    outer, inner, half_turn = 1.05, 0.46, math.pi / 5
    edge_x, edge_y = inner * math.cos(half_turn) - outer, inner * math.sin(half_turn)
    across = edge_x * radius * turn.sin() - edge_y * (radius * turn.cos() - outer)
    return -across / math.hypot(edge_x, edge_y)


def ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.72).abs() - 0.22


def cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.minimum(box(x, y, 0.28, 1.0), box(x, y, 1.0, 0.28))


def stripes(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance to bars along y with a period of 0.6, as wide as the gaps."""
    return (x.remainder(0.6) - 0.3).abs() - 0.15


def checkerboard(x: Tensor, y: Tensor) -> Tensor:
    """Return the distance to fields in a column or in a row of stripes, but not in both."""
    columns, rows = stripes(x, y), stripes(y, x)
    return torch.maximum(torch.minimum(columns, rows), -torch.maximum(columns, rows))


def dots(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x.remainder(0.5) - 0.25, y.remainder(0.5) - 0.25) - 0.15


def waves(x: Tensor, y: Tensor) -> Tensor:
    return 0.8 * stripes(x + 0.16 * torch.sin(y * 7), y)


def box(x: Tensor, y: Tensor, half_width: float, half_height: float) -> Tensor:
    return torch.maximum(x.abs() - half_width, y.abs() - half_height)


SHAPES: tuple[Distance, ...] = (
    circle, square, triangle, star, ring, cross, stripes, checkerboard, dots, waves
)  # fmt: skip
CLASSES: tuple[str, ...] = tuple(shape.__name__ for shape in SHAPES)


def render(label: int, seed: int = 0, size: int = SIZE) -> Tensor:
    """Return a random image `(3, size, size)` of 0..1 of the class `label`, determined by the seed."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.rand(10, generator=generator).tolist()
    colours = torch.rand(4, 3, generator=generator)
    noise = torch.randn(3, size, size, generator=generator)

    position_x, position_y, angle, scale, *rest = spread
    sky_angle, ink_angle, softness, grain, stretch, mirror = rest
    # The image spans -1 to 1. Centre and scale keep the shape inside the centre crop of 7/8 of the side.
    axis = (torch.arange(size) + 0.5) * (2 / size) - 1
    across, down = axis[None, :], axis[:, None]
    radius = 0.4 + 0.35 * scale
    room = 0.9 - radius
    x = (across - room * (2 * position_x - 1)) * (1 if mirror < 0.5 else -1)
    y = (down - room * (2 * position_y - 1)) * (0.85 + 0.3 * stretch)
    cosine, sine = math.cos(2 * math.pi * angle), math.sin(2 * math.pi * angle)
    x, y = cosine * x + sine * y, cosine * y - sine * x
    distance = SHAPES[label](x / radius, y / radius) * (radius * size / 2)  # in pixels

    # An edge of one pixel is just smooth; a wider one looks out of focus, equally so at every size.
    edge = 1 + 1.5 * softness * size / SIZE
    ink = (0.5 - distance / edge).clamp(0, 1)
    # Each channel of the foreground differs by 0.3 or more from the background, in either direction.
    first = colours[0]
    second = (first + 0.3 + 0.4 * colours[1]).remainder(1)
    background = _gradient(first, colours[2] - 0.5, 2 * math.pi * sky_angle, across, down)
    foreground = _gradient(second, colours[3] - 0.5, 2 * math.pi * ink_angle, across, down)
    image = background + ink * (foreground - background)
    return image.add_(noise, alpha=0.01 + 0.06 * grain).clamp_(0, 1)


def _gradient(colour: Tensor, change: Tensor, angle: float, across: Tensor, down: Tensor) -> Tensor:
    """Return a plane `(3, H, W)` of `colour` `(3,)` in the middle, shifting by up to `change / 4` either way."""
    along = math.cos(angle) * across + math.sin(angle) * down
    return colour[:, None, None] + 0.25 * change[:, None, None] * along


with without_dynamo():
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import functional as transforms

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HELD_OUT_SHARE = 0.2
_DRAWN_SHARE = 0.1  # of drawn images, of which there are many
# Usual names of the folders to train on and to validate on.
_SPLITS = (("train", "training"), ("val", "valid", "validation", "test"))
Example = tuple[Tensor, int] | None


def normalisation(n_channels: int) -> list[tuple[float, ...]]:
    """Return the mean and std of ImageNet; for gray the mean of the three, as `predict` does."""
    return [values if n_channels == 3 else (round(fmean(values), 6),) for values in (_MEAN, _STD)]


def normalise(image: Tensor) -> Tensor:
    """Normalise an image `(3, H, W)` or `(1, H, W)` of 0..1."""
    mean, std = (torch.tensor(values)[:, None, None] for values in normalisation(len(image)))
    return (image - mean) / std


class DrawnImages(Dataset[Example]):
    """The sample set as normalised tensors `(3, size, size)`, or gray ones `(1, size, size)`.

    Sets of different seeds share no image.
    """

    is_gray = False  # set for a model with one input channel

    def __init__(self, count: int, seed: int, size: int) -> None:
        self.count, self.seed, self.size = count, seed, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Example:
        label = index % len(CLASSES)
        image = render(label, self.seed * SEEDS_APART + index, self.size)
        return normalise(image.mean(0, keepdim=True) if self.is_gray else image), label


class FolderImages(Dataset[Example]):
    """Images from disk, resized and centre-cropped to `(3, size, size)`, or gray; None for an unreadable one.

    Args:
        unreadable: collects the error by file, of the files that could not be decoded.
    """

    is_gray = False  # set for a model with one input channel

    def __init__(self, files: Sequence[tuple[str, int]], size: int, unreadable: dict[str, str]) -> None:
        self.files, self.size, self.unreadable = files, size, unreadable

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Example:
        path, label = self.files[index]
        try:
            image = decode(ListedImage(path), "L" if self.is_gray else "RGB")
        except CannotRunError as error:
            self.unreadable[path] = error.message
            return None
        image = transforms.center_crop(transforms.resize(image, [self.size]), [self.size])
        return normalise(transforms.to_tensor(image)), label


@dataclass(frozen=True, slots=True)
class TrainingData:
    """Images to train on and to validate on. `LoaderData` has the same attributes and methods."""

    source: str  # a description
    preprocessing: str  # of an image, before it is normalised
    size: int
    classes: tuple[str, ...]  # their names, in the order of the labels; empty if unknown
    training: DrawnImages | FolderImages
    held_out: DrawnImages | FolderImages
    n_training: int
    n_held_out: int
    # Files skipped so far, with their errors; grows while the data are read.
    unreadable: dict[str, str] = field(default_factory=dict)

    def batches(self, batch: int, seed: int) -> "Batches":
        """Return the training images in seeded order, a different one every epoch."""
        return Batches(self.training, min(batch, self.n_training), seed)

    def held_out_batches(self) -> "Batches | tuple[()]":
        return Batches(self.held_out, 100, None) if self.n_held_out else ()

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def info(self, shape: Shape) -> DataInfo:
        """Describe the data for the record, with the files skipped so far; `shape` is that of one batch."""
        skipped = tuple(sorted(self.unreadable))
        return DataInfo(self.source, self.classes, self.n_training, self.n_held_out, self.size, skipped)

    def input_info(self, shape: Shape) -> InputInfo:
        """Describe one batch for the header of the record."""
        mean, std = normalisation(shape[1])
        return InputInfo("image", (shape,), (), f"{self.preprocessing}, mean {mean}, std {std}")

    def warnings(self) -> tuple[Notice, ...]:
        """Warn of the files that could not be read so far."""
        if not self.unreadable:
            return ()
        total = self.n_training + self.n_held_out
        n, first = len(self.unreadable), min(self.unreadable)
        what = f"{n} of {total} images could not be read and were skipped: {self.unreadable[first]}"
        return (Notice("unreadable_pictures", what + (f" and {n - 1} more" if n > 1 else "")),)

    def as_found(self) -> AbstractContextManager[None]:
        """Restore the data on exit, so that the next training sees the same."""
        return nullcontext()


DataSource = TrainingData | LoaderData


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
                "no image could be read", "give a folder with one subfolder of images per class"
            )


def _collate(examples: list[Example]) -> LabelledBatch | None:
    decoded = [example for example in examples if example is not None]
    if not decoded:
        return None
    return torch.stack([image for image, _ in decoded]), torch.tensor([label for _, label in decoded])


def open_data(data: Any, loaders: str | None, pictures: int, size: int, seed: int) -> DataSource:
    """Open `loaders`, or the data: None for `pictures` drawn shapes, a folder, a loader or a pair of loaders."""
    if loaders is not None:
        return import_loaders(loaders)
    if data is None:
        return open_drawn(pictures, size, seed)
    if isinstance(data, str | PathLike):
        return open_folder(Path(data), size, seed)
    first = data[0] if isinstance(data, tuple) and data else data
    return LoaderData(data, type(first).__name__)


def open_drawn(count: int, size: int, seed: int) -> TrainingData:
    """Return the drawn sample set of `count` images, and a tenth as many of another seed to validate on."""
    n_held_out = max(1, round(count * _DRAWN_SHARE))
    return TrainingData(
        source="drawn shapes",
        preprocessing=f"drawn at {size}x{size}",
        size=size,
        classes=CLASSES,
        training=DrawnImages(count, 2 * seed, size),
        held_out=DrawnImages(n_held_out, 2 * seed + 1, size),
        n_training=count,
        n_held_out=n_held_out,
    )


def open_folder(folder: Path, size: int, seed: int) -> TrainingData:
    """Open a folder with one subfolder of images per class; a seeded fifth of each class is held out.

    A folder with `train` and `val`, or other usual names of them, is trained on the one and validated on the other.
    """
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise CannotRunError(f"'{folder}' {problem}", look_for(folder))
    here = {path.name.lower(): path for path in folder.iterdir() if path.is_dir()}
    training, validating = (next((here[name] for name in names if name in here), None) for names in _SPLITS)
    if training is None or validating is None:
        training, validating = folder, None
    files, held_out = _listed(training), [] if validating is None else _listed(validating)
    labels = {name: label for label, name in enumerate(sorted({name for _, name in files}))}
    if len(labels) == 1:
        message = f"'{training}' holds images of one class only, '{next(iter(labels))}'"
        folders = {Path(path).parent for path, _ in files}
        inner = {folder.parent for folder in folders} - {training}
        found = f"did you mean {quoted(map(str, inner))}" if len(inner) == 1 < len(folders) else ""
        raise CannotRunError(message, found or f"ls {shlex.quote(str(training))}")
    if unknown := sorted({name for _, name in held_out} - {*labels}):
        message = f"'{validating}' has classes that '{training}' lacks: {some(unknown)}"
        raise CannotRunError(message, f"ls {shlex.quote(str(folder))}/*")
    images = [(path, labels[name]) for path, name in (*files, *held_out)]
    unreadable: dict[str, str] = {}
    validated = {*range(len(files), len(images))} or _held_out([label for _, label in images], seed)
    return TrainingData(
        source=str(training),
        preprocessing=f"short side to {size}, centre crop {size}x{size}",
        size=size,
        classes=tuple(labels),
        training=FolderImages(
            [images[i] for i in range(len(images)) if i not in validated], size, unreadable
        ),
        held_out=FolderImages([images[i] for i in sorted(validated)], size, unreadable),
        n_training=len(images) - len(validated),
        n_held_out=len(validated),
        unreadable=unreadable,
    )


def _held_out(labels: Sequence[int], seed: int) -> set[int]:
    """Return the indices of a seeded fifth of the images of each class: at least one, but never the only one."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)).tolist()
    of_class = {label: [i for i in order if labels[i] == label] for label in set(labels)}
    return {
        i
        for indices in of_class.values()
        for i in indices[: min(max(1, round(len(indices) * _HELD_OUT_SHARE)), len(indices) - 1)]
    }


def _listed(folder: Path) -> list[tuple[str, str]]:
    """Return the images in the subfolders of a folder with their classes; refuse a folder without any."""
    here = f"ls {shlex.quote(str(folder))}"
    try:
        listing = ImageFolder(str(folder), is_valid_file=is_picture, allow_empty=True)
    except FileNotFoundError as error:
        message = f"'{folder}' contains no folders: it needs one per class, with its images"
        raise CannotRunError(message, here) from error
    if not listing.samples:
        raise CannotRunError(f"the folders in '{folder}' hold no images", here)
    return [(path, listing.classes[label]) for path, label in listing.samples]
