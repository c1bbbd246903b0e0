"""The images of a result's folder, embedded in its page."""

import base64
import io
import json
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

from modelscope_cli.library_types import Image as PilImage
from modelscope_cli.report.canvas import IMAGES
from modelscope_cli.report.page.html import Html, element

_LARGE = 300_000  # bytes
_WIDEST = 2000  # pixels; wider ones are shrunk
_EAGER = 8  # images decoded at once, so that one who prints or captures the page sees them
_WIDE = 700  # pixels from which a small screen scrolls an image, so that its text is legible


class EmbeddedImages:
    """The images in the folder of a result; none without a folder.

    Args:
        later: the folder that `modelscope report` draws the other figures of; None to draw them now, which takes a
            second.
    """

    def __init__(self, folder: Path | None, *, later: Path | None = None) -> None:
        self._folder = folder
        self.later = later
        self._n_shown = 0

    def figure(self, name: str | None, alt: str, caption: str = "", **look: Any) -> Html | None:
        """Return an image of the folder, see `drawn`; None if there is no file of this name inside it."""
        if self._folder is None or not name or Path(name).name != name:
            return None
        file = self._folder / name
        return self.drawn(file.read_bytes(), alt, caption, **look) if file.is_file() else None

    def drawn(
        self,
        data: bytes,
        alt: str,
        caption: str = "",
        *,
        least: int = 0,
        is_exact: bool = False,
        is_chart: bool = False,
    ) -> Html | None:
        """Return an image with its alternative text from its encoded bytes; None if they are not an image.

        Args:
            least: pixels of the longer side up to which a smaller image is enlarged by an integer factor.
            is_exact: whether a large file is also kept without loss.
            is_chart: whether it has lines and letters only, unless it says where its images are: 64 colours do, for
                a third of the bytes, and a dark page inverts it.
        """
        frame = _frame_of(data) if is_chart else None
        encoded = _encoded(data, is_exact, is_chart and frame is None)
        if encoded is None:
            return None
        uri, width, height = encoded
        is_chart = is_chart and frame is None
        self._n_shown += 1
        is_lazy = self._n_shown > _EAGER
        factor = max(least // max(width, height), 1)
        image = element(
            "img",
            src=uri,
            alt=alt,
            width=factor * width,
            height=factor * height,
            loading="lazy" if is_lazy else None,
            decoding="async" if is_lazy else None,
            class_="chart" if is_chart else "sharp" if factor > 1 else None,
        )
        kinds = ["drawn"] * (width > _WIDE) + ["framed"] * (frame is not None)
        over = (
            [element("img", src=frame, alt="", width=width, height=height, class_="chart")] if frame else []
        )
        content = element("div", image, *over, class_=" ".join(kinds)) if kinds else image
        return element("figure", element("figcaption", caption) if caption else None, content)


def _frame_of(data: bytes) -> str | None:
    """Return what is around the images of a figure as a data URI, which a dark page inverts; None for a chart."""
    from PIL import Image

    with suppress(OSError, ValueError, Image.DecompressionBombError), Image.open(io.BytesIO(data)) as opened:
        places = json.loads(opened.info.get(IMAGES, "[]"))
        if not places:
            return None
        frame = opened.convert("RGBA")
        for left, top, right, bottom in places:
            corner = ceil(left * frame.width), ceil(top * frame.height)
            frame.paste((0, 0, 0, 0), (*corner, int(right * frame.width), int(bottom * frame.height)))
        frame.thumbnail((_WIDEST, frame.height))
        kept = _as(frame.quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE), "PNG")
        return f"data:image/png;base64,{base64.b64encode(kept).decode()}"
    return None


def _encoded(data: bytes, is_exact: bool, is_chart: bool) -> tuple[str, int, int] | None:
    """Return an image as a data URI, from `_LARGE` on compressed with invisible loss, and its size; else None."""
    from PIL import Image, UnidentifiedImageError, WebPImagePlugin  # noqa: F401, else `save` imports every format

    try:
        with Image.open(io.BytesIO(data)) as opened:
            image = opened.copy()
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError):
        return None
    kind = Image.MIME.get(opened.format or "", "image/png")
    whole = image
    if is_chart:
        few = image.convert("RGB").quantize(64, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
        image = few.convert("RGB")
    if image.width > _WIDEST:
        image = image.convert("RGB").resize((_WIDEST, round(image.height * _WIDEST / image.width)))
    if max(image.size) < 16_000:
        is_lossless = is_exact or is_chart or len(data) < _LARGE
        look = {"lossless": True, "quality": 20, "method": 2} if is_lossless else {"quality": 90, "method": 2}
        smaller = _as(image.convert("RGBA" if "A" in image.getbands() else "RGB"), "WEBP", **look)
        if len(smaller) < len(data):
            data, kind = smaller, "image/webp"
    elif image is not whole:
        data, kind = _as(image, "PNG", optimize=True), "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode()}", *image.size


def _as(image: PilImage, format: str, **look: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **look)
    return buffer.getvalue()
