"""Pictures that a result left in its folder, put into the page itself."""

import base64
import io
from pathlib import Path

from modelscope_cli.report.page.html import Html, element

_WIDEST = 2000  # pixels; wider ones are made smaller


class Pictures:
    """The folder of a result, or none: then there are no pictures."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def figure(
        self, name: str | None, alt: str, caption: str = "", *, class_: str | None = None
    ) -> Html | None:
        """Return a picture with what it shows in words; None where there is no such file.

        Args:
            name: of the file inside the folder; whatever leads out of it is nothing.
        """
        file = self._file(name)
        if file is None:
            return None
        encoded = _encoded(file)
        if encoded is None:
            return None
        uri, width, height = encoded
        image = element(
            "img",
            src=uri,
            alt=alt,
            width=width,
            height=height,
            loading="lazy",
            decoding="async",
            class_=class_,
        )
        return element("figure", element("figcaption", caption) if caption else None, image)

    def _file(self, name: str | None) -> Path | None:
        if self._folder is None or not name or Path(name).name != name:
            return None
        file = self._folder / name
        return file if file.is_file() else None


def _encoded(file: Path) -> tuple[str, int, int] | None:
    """Return a picture as a data URI, and its size: lossless, in the smaller of two formats; None of no picture."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as opened:
            image = opened.copy()
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError):
        return None
    data, kind = file.read_bytes(), Image.MIME.get(opened.format or "", "image/png")
    if image.width > _WIDEST:
        image = image.convert("RGB").resize((_WIDEST, round(image.height * _WIDEST / image.width)))
        data = _as(image, "PNG")
        kind = "image/png"
    if max(image.size) < 16_000:
        smaller = _as(image.convert("RGBA" if "A" in image.getbands() else "RGB"), "WEBP")
        if len(smaller) < len(data):
            data, kind = smaller, "image/webp"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}", *image.size


def _as(image: object, format: str) -> bytes:
    buffer = io.BytesIO()
    options = {"lossless": True, "quality": 60, "method": 2} if format == "WEBP" else {"optimize": True}
    image.save(buffer, format, **options)  # type: ignore[attr-defined]
    return buffer.getvalue()
