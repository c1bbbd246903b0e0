"""Decode images with Pillow, refusing truncated and oversized ones; count the unreadable."""

import io
import logging
import os
import shlex
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.files import IMAGE_FORMATS, OTHER_SUFFIXES, ListedImage, is_picture
from modelscope_cli.paths import refuse_endless
from modelscope_cli.records.naming import counted, some
from modelscope_cli.records.run import BrokenKind, Notice

EMPTY, NOT_AN_IMAGE, TRUNCATED, DANGLING = "empty", "not an image", "truncated", "linked to a missing file"
TOO_LARGE, TOO_NARROW, OF_32_BITS, UNREADABLE = "too large", "too narrow", "32-bit", "unreadable"
_MOST_NAMED = 10  # of each kind in the record
_MOST_SHOWN = 3  # of each kind on one line


class UnreadableImageError(CannotRunError):
    """An image that cannot be decoded. Exit code 4 if it is required.

    Attributes:
        kind: one of the kinds above.
    """

    def __init__(self, kind: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class UnreadableImage:
    """An image that could not be decoded: its number in the list of images, its name, and why."""

    number: int
    name: str
    kind: str


class UnreadableImages:
    """Counts each broken image once, over any number of passes in any order."""

    def __init__(self) -> None:
        self._by_number: dict[int, UnreadableImage] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def take(self, broken: Iterable[UnreadableImage]) -> None:
        """Count broken images, unless they were counted before."""
        self._by_number |= {image.number: image for image in broken}

    def kinds(self) -> tuple[BrokenKind, ...]:
        """Return every kind with its count, the most frequent first."""
        names: dict[str, list[str]] = {}
        for _, image in sorted(self._by_number.items()):
            names.setdefault(image.kind, []).append(image.name)
        kinds = sorted(names, key=lambda kind: (-len(names[kind]), kind))
        return tuple(BrokenKind(kind, len(names[kind]), tuple(names[kind][:_MOST_NAMED])) for kind in kinds)

    def warnings(self, n_listed: int) -> tuple[Notice, ...]:
        """Return a warning with the number of unreadable images; empty if none."""
        if not self._by_number:
            return ()
        message = f"{len(self):,} of {counted(n_listed, 'image')} could not be read: {in_words(self.kinds())}"
        return (Notice("broken-images", message),)


def in_words(kinds: Iterable[BrokenKind]) -> str:
    """Return the counts with the first names: `2 truncated ('a.jpg', 'b.jpg'), 1 empty ('c.jpg')`."""
    named = ((kind, some(map("'{}'".format, kind.names), _MOST_SHOWN, kind.count)) for kind in kinds)
    return ", ".join(f"{kind.count:,} {kind.kind} ({names})" for kind, names in named)


Mode = str  # "RGB" or "L"
_ORIENTATION = 0x0112  # the EXIF tag: 1 is upright
# Pillow's messages for truncated files.
_CUT = ("truncated", "unexpected end", "buffer overrun", "broken data stream", "not enough image data")
OF_SEVERAL = (".gif", ".webp", ".tif", ".tiff")  # which may be animations, or have pages
# Errors that Pillow logs are also raised, and should be shown once.
logging.getLogger("PIL").addHandler(logging.NullHandler())


def decode(file: ListedImage, mode: Mode, *, is_turned: bool = True) -> Image.Image:
    """Return the first frame of an image as 8-bit `RGB` or `L`, turned by its EXIF orientation if `is_turned`.

    Transparency is composited on white; 16-bit gray is divided by 257, so that white stays white.
    """
    try:
        if file.content is None:
            refuse_endless(file.name)
        if file.image is not None:
            return _to_mode(ImageOps.exif_transpose(file.image) if is_turned else file.image, mode)
        with _opened(file) as image:
            image.load()
            if is_turned:
                ImageOps.exif_transpose(image, in_place=True)
            return _to_mode(image, mode)
    except UnreadableImageError:
        raise
    # Pillow's decoders raise OSError, SyntaxError, struct.error, IndexError ... for damaged files.
    except Exception as error:
        raise _broken(file, error) from error


def _broken(file: ListedImage, error: Exception) -> UnreadableImageError:
    """Return the error with the reason why an image cannot be decoded, and its kind."""
    look = f"file {shlex.quote(file.name)}"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        size = str(error).partition(",")[0].partition("(")[2]
        return UnreadableImageError(
            TOO_LARGE,
            f"'{file.name}' is too large to open safely ({size.replace(')', ',', 1)})",
            f"magick {shlex.quote(file.name)} -resize 4096x4096 smaller.png",
        )
    if isinstance(error, UnidentifiedImageError):
        if file.count_bytes() == 0:
            hint = f"rm {shlex.quote(file.name)}   or copy the image again"
            return UnreadableImageError(EMPTY, f"'{file.name}' is empty", hint)
        path = Path(file.name)
        if path.suffix.lower() in {*OTHER_SUFFIXES, ".pdf"}:
            look = f"magick {shlex.quote(file.name)} {shlex.quote(str(path.with_suffix('.png')))}"
        problem = f"is not an image ({', '.join(IMAGE_FORMATS)})" + ", despite its name" * is_picture(
            file.name
        )
        return UnreadableImageError(NOT_AN_IMAGE, f"'{file.name}' {problem}", look)
    if isinstance(error, FileNotFoundError) and os.path.islink(file.name):
        message = f"'{file.name}' is a link to '{os.readlink(file.name)}', which does not exist"
        return UnreadableImageError(DANGLING, message, f"rm {shlex.quote(file.name)}")
    if isinstance(error, PermissionError):
        hint = f"ls -l {shlex.quote(file.name)}"
        return UnreadableImageError(UNREADABLE, f"no permission to read '{file.name}'", hint)
    if isinstance(error, CannotRunError):  # a pipe or a device
        return UnreadableImageError(UNREADABLE, error.message, error.hint or look)
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return UnreadableImageError(_kind_of(error), f"'{file.name}' cannot be decoded: {reason}", look)


def _kind_of(error: Exception) -> str:
    """Return the kind of damage by a decoder's error message, as few have classes of their own."""
    if isinstance(error, _NoWhiteError):
        return OF_32_BITS
    is_cut = isinstance(error, EOFError) or any(word in str(error).lower() for word in _CUT)
    return TRUNCATED if is_cut else UNREADABLE


def frames_and_mode(file: ListedImage) -> tuple[int, str]:
    """Return the number of frames or pages in a file, and its mode; 1 and "" if `decode` will refuse it."""
    try:
        with _opened(file) as image:
            return getattr(image, "n_frames", 1), image.mode
    except Exception:
        return 1, ""


def is_stored_turned(file: ListedImage) -> bool:
    """Tell whether an image's EXIF orientation turns or mirrors it, reading only the header."""
    with _opened(file) as image:  # of PNG it reads more
        return bool(image.getexif().get(_ORIENTATION, 1) != 1)


def upright_size(file: ListedImage) -> tuple[int, int]:
    """Return width and height of a decodable image after its EXIF rotation."""
    with _opened(file) as image:
        width, height = image.size
        is_on_its_side = image.getexif().get(_ORIENTATION, 1) >= 5
        return (height, width) if is_on_its_side else (width, height)


_N_LOOKED_AT = 32  # headers of image files


def conversions(files: Sequence[ListedImage], mode: Mode) -> list[str]:
    """Return a note for each kind of change that decoding to `mode` makes, by the headers of the first files."""
    changed: dict[str, list[str]] = {}
    for file in files[:_N_LOOKED_AT]:
        with suppress(Exception), _opened(file) as image:  # what cannot be read is reported elsewhere
            for change in _changes(image, mode):
                changed.setdefault(change, []).append(f"'{file.name}'")
    return [f"images: {change}: {some(names, 2)}" for change, names in changed.items()]


def _changes(image: Image.Image, mode: Mode) -> Iterator[str]:
    """Yield what an image loses or gains in `_to_mode`, in words."""
    is_gray = image.mode in ("1", "L", "LA", "I", "F") or image.mode.startswith("I;16")
    if is_gray and mode == "RGB":
        yield "gray, so all 3 channels are equal"
    if not is_gray and mode == "L":
        yield "colour becomes gray, as the model takes 1 channel"
    if image.mode.startswith("I"):
        yield "16-bit values are divided by 257"
    if image.has_transparency_data:
        yield "transparent pixels become white"
    if image.mode == "CMYK":
        yield "CMYK is converted without its colour profile"


def _to_mode(image: Image.Image, mode: Mode) -> Image.Image:
    extrema: Any = image.getextrema() if image.mode == "I" else ()
    # Some 16-bit files open as 32-bit ones.
    if image.mode.startswith("I;16") or (extrema and extrema[1] <= 65535):
        # Pillow's own conversion clips at 255; a linear point scales, and + 0.5 rounds.
        image = image.convert("I").point(lambda value: value * (1 / 257) + 0.5).convert("L")
    elif image.mode in {"I", "F"}:
        raise _NoWhiteError(
            f"its 32-bit pixels (mode {image.mode}) have no defined white level; store it as .npy instead"
        )
    elif image.has_transparency_data:
        pixels = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", pixels.size, "white"), pixels)
    return image if image.mode == mode else image.convert(mode)


class _NoWhiteError(ValueError):
    """Pixel values without a defined white."""


@contextmanager
def strict_pillow() -> Iterator[None]:
    """Make Pillow refuse truncated and oversized images in the whole process; start threads inside."""
    was_lenient = ImageFile.LOAD_TRUNCATED_IMAGES
    # A user's model file may have enabled it; a half-gray image is worse than an error.
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = was_lenient


@contextmanager
def _opened(file: ListedImage) -> Iterator[Image.Image]:
    """Open an image, of which only the header is read; one that the Python caller decoded stays open."""
    stream = Path(file.name) if file.content is None else io.BytesIO(file.content)
    opened = nullcontext(file.image) if file.image else Image.open(stream, formats=IMAGE_FORMATS)
    with strict_pillow(), opened as image:
        yield image


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an image file is in the model's input."""

    size: tuple[int, int]  # width and height of the file after EXIF rotation
    scale: tuple[float, float]  # pixels of the input per pixel of the file, along x and y
    offset: tuple[float, float] = (0, 0)  # of the left upper corner, in pixels of the input

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return a point of the input in pixels of the file, not outside of it."""
        (width, height), (x_scale, y_scale), (left, top) = self.size, self.scale, self.offset
        return min(max((x - left) / x_scale, 0.0), width), min(max((y - top) / y_scale, 0.0), height)
