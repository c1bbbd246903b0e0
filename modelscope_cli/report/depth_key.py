"""Colours from the first layer of a network to its last, where each is a line."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from modelscope_cli.report.canvas import axes_at
from modelscope_cli.report.labels import shortened
from modelscope_cli.report.layer_names import POINTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAME = 0.2  # inches from a name to the next
_KEY = 0.14


@lru_cache(maxsize=1)
def _colours() -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap([colormaps["viridis"](i / 280) for i in range(256)])


def depth_colour(number: int, n: int) -> Any:
    """Return the colour of layer `number` of `n`; the palest would be lost on white."""
    return _colours()(number / max(n - 1, 1))


def draw_depth_key(figure: "Figure", place: tuple[float, float, float], labels: Sequence[str]) -> None:
    """Draw which layer has which colour, at a left edge, an upper edge and a height in inches."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    left, top, height = place
    axes = axes_at(figure, left, top, _KEY, height)
    key = figure.colorbar(ScalarMappable(Normalize(0, max(len(labels) - 1, 1)), _colours()), cax=axes)
    stride = -(-len(labels) // max(int(height / _NAME), 1))
    names = [shortened(label) for label in labels[::stride]]
    key.set_ticks(list(range(0, len(labels), stride)), labels=names, fontsize=POINTS)
    key.ax.invert_yaxis()


def room_for_key(labels: Sequence[str]) -> float:
    """Return about how many inches the key and the names take."""
    return 0.3 + max((len(shortened(label)) for label in labels), default=0) * POINTS * 0.62 / 72
