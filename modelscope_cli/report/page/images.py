"""Images that a result left in its folder, embedded in the page."""

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from modelscope_cli.report.page.html import Html, element

if TYPE_CHECKING:
    from PIL.Image import Image


_LARGE = 300_000  # bytes
_WIDEST = 2000  # pixels; wider ones are made smaller
_WIDE = 900  # from here on a small screen scrolls an image, whose words it could not show otherwise


class EmbeddedImages:
    """The folder of a result, or none: then there are no images."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def figure(
        self,
        name: str | None,
        alt: str,
        caption: str = "",
        *,
        class_: str | None = None,
        least: int = 0,
        is_exact: bool = False,
    ) -> Html | None:
        """Return an image with what it shows in words; None where there is no such file.

        Args:
            name: of the file inside the folder; whatever leads out of it is nothing.
            least: pixels of its longer side, up to which a smaller one is enlarged by a whole factor.
            is_exact: whether every pixel is kept also of an image that takes much room.
        """
        file = self._file(name)
        if file is None:
            return None
        encoded = _encoded(file, is_exact)
        if encoded is None:
            return None
        uri, width, height = encoded
        factor = max(least // max(width, height), 1)
        image = element(
            "img",
            src=uri,
            alt=alt,
            width=factor * width,
            height=factor * height,
            loading="lazy",
            decoding="async",
            class_="sharp" if factor > 1 else class_,
        )
        return element(
            "figure",
            element("figcaption", caption) if caption else None,
            element("div", image, class_="drawn") if width > _WIDE else image,
        )

    def _file(self, name: str | None) -> Path | None:
        if self._folder is None or not name or Path(name).name != name:
            return None
        file = self._folder / name
        return file if file.is_file() else None


def slider(before: Html, after: Html) -> Html:
    """Return two figures side by side, which the script of the page lays one over the other with a slider."""
    return element("div", before, after, class_="compare")


def _encoded(file: Path, is_exact: bool) -> tuple[str, int, int] | None:
    """Return an image as a data URI, and its size, in the smaller of two formats; None of no image.

    One that takes more than `_LARGE` loses what is not visible, which makes it a third as large; all of it is in
    the folder.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image = opened.copy()
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError):
        return None
    data, kind = file.read_bytes(), Image.MIME.get(opened.format or "", "image/png")
    if image.width > _WIDEST:
        image = image.convert("RGB").resize((_WIDEST, round(image.height * _WIDEST / image.width)))
        data = _as(image, "PNG", optimize=True)
        kind = "image/png"
    if max(image.size) < 16_000:
        look = (
            {"lossless": True, "quality": 60, "method": 2}
            if is_exact or len(data) < _LARGE
            else {"quality": 90}
        )
        smaller = _as(image.convert("RGBA" if "A" in image.getbands() else "RGB"), "WEBP", **look)
        if len(smaller) < len(data):
            data, kind = smaller, "image/webp"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}", *image.size


def _as(image: "Image", format: str, **look: bool | int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **look)
    return buffer.getvalue()
