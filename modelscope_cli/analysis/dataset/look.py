"""Facts about one image file, decoded once."""

import hashlib
from dataclasses import dataclass
from typing import Any, cast

from PIL import Image

from modelscope_cli.inputs.files import ListedImage
from modelscope_cli.inputs.image import OF_SEVERAL, UnreadableImageError, decode, frames_and_mode

THUMBNAIL = (16, 16)  # pixels


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The facts of one image; all but `kind` are valid only if it can be decoded."""

    kind: str = ""  # why it cannot be decoded, in the words of `inputs.image`; empty if it can
    pixels_sha256: bytes = b""  # of the decoded RGB pixels, with their width and height
    is_one_colour: bool = False
    has_frames: bool = False  # whether the file has several, of which the first is decoded
    size: tuple[int, int] = (0, 0)  # width and height in pixels, after EXIF rotation
    thumbnail: bytes = b""  # gray, for near copies; empty without several data sets
    mode: str = ""  # Pillow's name of how the file stores a pixel, such as "L" for gray


def look_at(file: ListedImage, *, is_compared: bool) -> ImageFacts:
    """Decode one image, with a thumbnail if it `is_compared`; errors are returned as `kind`."""
    try:
        image = decode(file, "RGB")
    except UnreadableImageError as error:
        return ImageFacts(error.kind)
    pixels = hashlib.sha256(b"%d x %d\0" % image.size)
    pixels.update(image.tobytes())
    is_one_colour = all(low == high for low, high in cast("Any", image.getextrema()))
    n_frames, mode = frames_and_mode(file)
    has_frames = n_frames > 1 and file.name.lower().endswith(OF_SEVERAL)
    thumbnail = image.convert("L").resize(THUMBNAIL, Image.Resampling.BOX).tobytes() if is_compared else b""
    return ImageFacts("", pixels.digest(), is_one_colour, has_frames, image.size, thumbnail, mode)
