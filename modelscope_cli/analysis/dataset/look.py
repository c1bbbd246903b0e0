"""Facts about one image, read and decoded once and reduced to a few dozen bytes."""

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.image import UNREADABLE, UnreadableImageError, decode_gray
from modelscope_cli.inputs.listing import ListedImage
from modelscope_cli.paths import refuse_endless

SHORT_SIDE = 128  # pixels, the size at which everything is measured
COARSE, FINE = 8, 16  # means per side
COARSE_BYTES, FINE_BYTES = 2 * COARSE**2 // 8, 2 * FINE**2 // 8
# Steps below this share of the standard deviation are ignored: noise and compression would decide.
_STEP = 0.2


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The facts of one image; all but `sha256` and `kind` are valid only if it can be decoded."""

    sha256: bytes  # hash of the file; empty if it cannot be read
    kind: str = ""  # why it cannot be decoded, in the words of `inputs.image`; empty if it can
    # width, height: in pixels, after EXIF rotation
    width: int = 0
    height: int = 0
    # coarse, fine: gradient hashes of 128 and 512 bits; see `gradient_hash`
    coarse: bytes = bytes(COARSE_BYTES)
    fine: bytes = bytes(FINE_BYTES)
    light: float = 0.0  # the 99th percentile of the brightness, 0..1
    contrast: float = 0.0  # the standard deviation of the brightness, 0..0.5
    # The standard deviation of the Laplacian over the contrast, which does not depend on brightness and
    # contrast; small for blurred images, 0 without contrast
    sharpness: float = 0.0


def look_at(file: ListedImage) -> ImageFacts:
    """Read and decode one image; errors are returned as `kind`. Call only inside `strict_pillow`."""
    try:
        content = _read(file)
    except UnreadableImageError as error:
        return ImageFacts(b"", error.kind)
    except (OSError, CannotRunError):
        return ImageFacts(b"", UNREADABLE)
    digest = hashlib.sha256(content).digest()
    try:
        gray, (width, height) = decode_gray(ListedImage(file.name, content), SHORT_SIDE)
    except UnreadableImageError as error:
        return ImageFacts(digest, error.kind)
    light, contrast = _brightness(gray)
    hashes = gradient_hash(gray, COARSE), gradient_hash(gray, FINE)
    return ImageFacts(digest, "", width, height, *hashes, light, contrast, _sharpness(gray, contrast))


def _read(file: ListedImage) -> bytes:
    if file.content is not None:
        return file.content
    refuse_endless(file.name)
    with open(file.name, "rb") as stream:
        return stream.read()


def _brightness(gray: Image.Image) -> tuple[float, float]:
    """Return the 99th percentile and the standard deviation of the brightness, 1 for white."""
    counts = np.array(gray.histogram(), dtype=np.float64)
    levels = np.arange(256) / 255
    total = counts.sum()
    mean = counts @ levels / total
    light = levels[int(np.searchsorted(counts.cumsum(), 0.99 * total))]
    return float(light), float(np.sqrt(counts @ (levels - mean) ** 2 / total))


def _sharpness(gray: Image.Image, contrast: float) -> float:
    if contrast == 0 or min(gray.size) < 3:
        return 0.0
    x = np.asarray(gray, dtype=np.float32) / 255
    middle = x[1:-1, 1:-1]
    laplacian = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * middle
    return float(laplacian.std() / contrast)


def gradient_hash(gray: Image.Image, side: int) -> bytes:
    """Return the difference hash of an image in both directions, `side` squared bits each.

    A bit is set where the mean of a cell is brighter than that of the cell before by more than a fifth of the
    standard deviation of the means. (dHash, N. Krawetz 2013, with this threshold instead of zero, so that
    compression does not flip the bits of plain areas.)
    """
    means = gray.convert("F")
    across = np.asarray(means.resize((side + 1, side), Image.Resampling.BOX))
    down = np.asarray(means.resize((side, side + 1), Image.Resampling.BOX)).T
    return b"".join(_bits(grid) for grid in (across, down))


def _bits(means: Any) -> bytes:
    return np.packbits(np.diff(means, axis=1) > _STEP * means.std()).tobytes()


_WHOLE, _REAL = ("width", "height"), ("light", "contrast", "sharpness")
_BYTES = {"sha256": 32, "coarse": COARSE_BYTES, "fine": FINE_BYTES}


@dataclass(slots=True)
class ImageTable:
    """The facts of images in the order of the list, as columns."""

    width: Any = field(default_factory=lambda: array("I"))
    height: Any = field(default_factory=lambda: array("I"))
    light: Any = field(default_factory=lambda: array("f"))
    contrast: Any = field(default_factory=lambda: array("f"))
    sharpness: Any = field(default_factory=lambda: array("f"))
    sha256: bytearray = field(default_factory=bytearray)
    coarse: bytearray = field(default_factory=bytearray)
    fine: bytearray = field(default_factory=bytearray)
    # Why images cannot be decoded, by number; other columns are not valid for these
    kinds: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.width)

    def add(self, look: ImageFacts) -> None:
        if look.kind:
            self.kinds[len(self)] = look.kind
        for name in (*_WHOLE, *_REAL):
            getattr(self, name).append(getattr(look, name))
        self.sha256 += look.sha256 or bytes(32)
        self.coarse += look.coarse
        self.fine += look.fine

    def good(self) -> Any:
        """Return the numbers of the images that can be decoded, int64."""
        return np.array([n for n in range(len(self)) if n not in self.kinds], dtype=np.int64)

    def rows(self, name: str) -> Any:
        """Return a column of bytes as `(images, bytes)` uint8."""
        return np.frombuffer(bytes(getattr(self, name)), dtype=np.uint8).reshape(-1, _BYTES[name])

    def figures(self) -> Iterator[tuple[str, Any]]:
        """Return the numeric columns by name."""
        return ((name, getattr(self, name)) for name in (*_WHOLE, *_REAL))
