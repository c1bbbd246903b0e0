"""What all figures drawn with matplotlib have in common: their colours and canvas, their files, the step to disk.

The words of a figure are made harmless there, and the whole of it is written or nothing.
"""

import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelscope_cli.errors import UsageError
from modelscope_cli.paths import with_file
from modelscope_cli.plain_text import plain_lines
from modelscope_cli.report.folder import check_file, write_with

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
INK = "#1f2430"  # words, and lines that say where something is
LINE = "#3f5f8f"  # what is measured
ACCENT = "#d1495b"  # what to look at first
AMBER, GREEN = "#c98a2b", "#4f9d69"  # what is measured beside it
MARGIN = 0.1  # inches
_LETTER = 0.086  # inches of a letter of a title, about
SHARES = "YlGnBu"  # colours of a share, from nothing to all
MISSING = "#d9d9d9"  # where there is no number
# Where a legend covers no data: above the axes, to the right.
ABOVE: dict[str, Any] = {
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "frameon": False,
    "fontsize": 8,
}


def new_figure(width: float, height: float, title: str = "", *, is_laid_out: bool = True) -> "Figure":
    """Return an empty figure of so many inches that no window of the system is asked for.

    Args:
        title: in the upper left corner.
        is_laid_out: whether matplotlib makes room for all that is drawn; it draws everything twice for that.
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


def fitted(title: str, width: float) -> str:
    """Break the lines of a title that would leave a figure of so many inches."""
    most = max(int((width - 2 * MARGIN) / _LETTER), 20)
    return "\n".join(textwrap.fill(line, most, subsequent_indent="  ") for line in title.split("\n"))


def axes_at(figure: "Figure", left: float, top: float, width: float, height: float, **how: Any) -> Any:
    """Add axes at a place in inches from the upper left corner, to a figure that is not laid out."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / up, width / across, height / up), **how)


def tidy(axes: Any, title: str = "", **how: Any) -> None:
    """Give axes what all have in common: a title at the left, faint lines, no frame above and to the right."""
    if title:
        axes.set_title(title, loc="left", fontsize=9, color=INK, **how)
    axes.grid(lw=0.4, alpha=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def check_figure(path: Path, is_forced: bool) -> None:
    """Refuse a file that matplotlib would not know how to write, or that cannot or should not be written."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"'--plot {path}' does not end in one of {', '.join(SUFFIXES)}",
            with_file("--plot", path, ".png"),
        )
    check_file(path, is_forced)


def save_figure(figure: "Figure", path: Path, dpi: int = 130) -> None:
    """Write a figure in the format of its suffix; what it says is text, never a formula.

    A letter that no font has is left to look so.
    """
    _use_plain_words(figure)
    with any_letters():
        write_with(
            path, lambda beside: figure.savefig(beside, format=path.suffix.lower()[1:] or "png", dpi=dpi)
        )


@contextmanager
def any_letters() -> Iterator[None]:
    """Measure and draw letters that no font has, and scripts that cannot be laid out, without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from font")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support")
        yield


def _use_plain_words(figure: "Figure") -> None:
    """Texts stand in artists, but those of ticks in the function that makes them anew at every drawing."""
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
    """A dollar sign would begin a formula."""
    return plain_lines(text).replace("\\$", "$").replace("$", "\\$")
