"""Colours, canvas and files of all matplotlib figures.

Texts are escaped before a figure is saved, and files are written atomically.
"""

import io
import json
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modelscope_cli.errors import UsageError
from modelscope_cli.library_types import Figure
from modelscope_cli.output_files import check_file, write_with
from modelscope_cli.paths import with_file
from modelscope_cli.plain_text import plain_lines

SUFFIXES = (".png", ".svg", ".pdf")
INK = "#1f2430"  # text and guide lines
LINE = "#3f5f8f"  # measured values
ACCENT = "#d1495b"  # highlights
AMBER, GREEN = "#c98a2b", "#4f9d69"  # further measured values
MARGIN = 0.1  # inches
_LETTER = 0.086  # approximate width in inches of a letter of a title
SHARES = "YlGnBu"  # colour map of fractions, 0 to 1
MISSING = "#d9d9d9"  # missing values
# A legend that covers no data: above the axes, to the right.
ABOVE: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "frameon": False, "fontsize": 8}


def new_figure(width: float, height: float, title: str = "", *, is_laid_out: bool = True) -> Figure:
    """Return an empty figure of a size in inches, without a window.

    Args:
        title: in the upper left corner.
        is_laid_out: whether to use matplotlib's constrained layout, which draws everything twice.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if is_laid_out else None)
    FigureCanvasAgg(figure)
    corner: dict[str, Any] = {"x": 0.01}
    if not is_laid_out:
        corner = {"x": MARGIN / width, "y": 1 - MARGIN / height, "va": "top"}
    if title:
        figure.suptitle(fitted(title, width), **corner, ha="left", color=INK, fontsize=11)
    return figure


def figure_of(image: bytes, dpi: int) -> Figure:
    """Return a figure of a PNG alone, of its size at this resolution."""
    from PIL import Image

    pixels = Image.open(io.BytesIO(image)).convert("RGB")
    figure = new_figure(pixels.width / dpi, pixels.height / dpi, is_laid_out=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(pixels, interpolation="none")
    axes.set_axis_off()
    return figure


def fitted(title: str, width: float) -> str:
    """Wrap the lines of a title to a width in inches."""
    most = max(int((width - 2 * MARGIN) / _LETTER), 20)
    return "\n".join(textwrap.fill(line, most) for line in title.split("\n"))


def axes_at(figure: Figure, left: float, top: float, width: float, height: float, **how: Any) -> Any:
    """Add axes at a position in inches from the upper left corner, to a figure that is not laid out."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / up, width / across, height / up), **how)


def tidy(axes: Any) -> None:
    """Apply the common style: faint grid, no frame above and to the right."""
    axes.grid(lw=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def check_figure(path: Path, is_forced: bool) -> None:
    """Refuse a format unknown to matplotlib, and a file that cannot or should not be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"'--plot {path}' does not end in one of {', '.join(SUFFIXES)}", with_file("--plot", path, ".png")
        )
    check_file(path, is_forced)


def save_figure(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Write a figure in the format of its suffix; text is never parsed as a formula.

    A character without a glyph is drawn as missing.
    """
    write_with(path, lambda beside: _write(figure, beside, path.suffix.lower()[1:] or "png", dpi))


def to_png(figure: Figure, dpi: int = 110) -> bytes:
    buffer = io.BytesIO()
    _write(figure, buffer, "png", dpi)
    return buffer.getvalue()


def _write(figure: Figure, file: Path | io.BytesIO, format: str, dpi: int) -> None:
    _use_plain_words(figure)
    with any_letters():
        look: dict[str, Any] = {}
        if format == "png":  # level 4 takes half the time of the usual 6, for 4 % more bytes
            look = {"metadata": _places_of_images(figure), "pil_kwargs": {"compress_level": 4}}
        figure.savefig(file, format=format, dpi=_most_dots(figure, dpi), **look)


IMAGES = "Images"
"""The key in a PNG of where its images are: a dark page inverts only what is around them."""


def _places_of_images(figure: Figure) -> dict[str, str] | None:
    """Return left, top, right and bottom of the images of a figure, as shares of its size; None of one without
    a picture in colour, such as a chart."""
    shown: list[Any] = [axes for axes in figure.axes if axes.images or axes.get_label() == "<colorbar>"]
    if not any(image.get_array().ndim == 3 for axes in shown for image in axes.images):
        return None
    figure.draw_without_rendering()  # which lays it out
    across, up = figure.bbox.size
    boxes = [axes.get_window_extent() for axes in shown]
    shares = [[box.x0 / across, 1 - box.y1 / up, box.x1 / across, 1 - box.y0 / up] for box in boxes]
    return {IMAGES: json.dumps(shares)}


def _most_dots(figure: Figure, dpi: int) -> float:
    """Return the dots an inch: fewer for a figure above the 65,535 pixels that matplotlib draws."""
    return float(min(dpi, 65_000 / max(figure.get_size_inches())))


@contextmanager
def any_letters() -> Iterator[None]:
    """Suppress warnings about missing glyphs and about scripts that cannot be laid out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def _use_plain_words(figure: Figure) -> None:
    """Escape the texts of all artists; tick labels in the formatter that creates them at every drawing."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            formatter = axis.get_major_formatter()
            if isinstance(formatter, FuncFormatter):
                formatter.func = _in_words(formatter.func)
    for artist in figure.findobj(Text):
        if isinstance(artist, Text):
            artist.set_text(_words(artist.get_text()))


def _in_words(label: Callable[[float, int | None], str]) -> Callable[[float, int | None], str]:
    return lambda value, place: _words(label(value, place))


def _words(text: str) -> str:
    """Escape dollar signs, which begin a formula."""
    return plain_lines(text).replace("\\$", "$").replace("$", "\\$")
