"""What `check` finds in a folder of images, and what its rules judge of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modelscope_cli.records.run import BrokenKind

BYTES, PIXELS, ALIKE = "the same bytes", "the same pixels", "alike"


@dataclass(frozen=True, slots=True)
class CopyGroup:
    """Images that are copies of one another, in the order of the list.

    Attributes:
        how: `the same bytes`, `the same pixels` (once decoded), or `alike`; of the two that are least so.
        alike: the share of the edges that two of them have in common, 0..1; 1 of the same pixels. Of more than two
            images the smallest share that holds the group together.
        labels: the folders they lie in, each once; empty where images do not lie in folders of classes.
    """

    how: str
    images: tuple[str, ...]
    alike: float = 1.0
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, median and most of a figure over the images; None of none."""

    least: float
    median: float
    most: float


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """A data set without its model.

    Attributes:
        folders: what was typed. `against`: what it was held against.
        images: listed in both; `against_images`: how many of them in the latter.
        broken: those that cannot be decoded, by kind.
        identical: groups of images with the same bytes or pixels on one side; `alike`: of images that only look it.
        leaks: groups with images on both sides, the first of the one before those of the other.
        conflicts: groups in the folders of different classes.
        width, height: in pixels, of those that can be decoded.
        images_per_second: read, decoded and measured.
    """

    folders: tuple[str, ...]
    against: tuple[str, ...]
    images: int
    against_images: int
    broken: tuple[BrokenKind, ...]
    identical: tuple[CopyGroup, ...]
    alike: tuple[CopyGroup, ...]
    leaks: tuple[CopyGroup, ...]
    conflicts: tuple[CopyGroup, ...]
    width: Spread | None
    height: Spread | None
    images_per_second: float


@dataclass(frozen=True, slots=True)
class DatasetEvidence:
    """The report, and the figures of every image that can be decoded: a name and a number each, in one order.

    Attributes:
        names: of the images. The other columns are as long.
        width, height: in pixels.
        light: the brightness that 99 % of the pixels do not exceed; `contrast`: the standard deviation of the
            brightness, both of 1 for white; `sharpness`: the standard deviation of its Laplacian over that.
        has_labels: whether any image lies in the folder of a class.
        readable: how many images can be decoded on the first side, and on the other.
    """

    report: DatasetReport
    names: Sequence[str]
    width: Sequence[int]
    height: Sequence[int]
    light: Sequence[float]
    contrast: Sequence[float]
    sharpness: Sequence[float]
    has_labels: bool
    readable: tuple[int, int]


def spread_of(values: Iterable[int]) -> Spread | None:
    """Return least, median (the lower of two) and most."""
    ordered = sorted(values)
    return Spread(ordered[0], ordered[(len(ordered) - 1) // 2], ordered[-1]) if ordered else None
