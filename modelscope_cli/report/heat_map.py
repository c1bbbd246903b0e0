"""A heat map of a training: rows are layers, with their names; columns are steps, evenly spaced."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelscope_cli.report.canvas import INK, axes_at
from modelscope_cli.report.layer_names import MOST_ACROSS, POINTS, ROW, Name, write_names
from modelscope_cli.report.training_curves import draw_heat

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABOVE = 0.5  # inches over a map, for its title and the steps of a tall one
KEY_ROOM = 0.75  # inches at its right, for the key of the colours
_KEY, _KEY_HEIGHT, _KEY_GAP = 0.14, 4.0, 0.1
_WIDE_ROW = 0.26  # where there are few


def height_of(n: int) -> float:
    """Return how many inches so many rows take."""
    return n * (ROW if n > MOST_ACROSS else _WIDE_ROW)


def draw_map(
    figure: "Figure",
    place: tuple[float, float, float],
    grid: Any,
    steps: Sequence[int],
    names: Sequence[Name],
    title: str,
    **look: Any,
) -> tuple[Any, Any]:
    """Draw `(rows, steps)` with its upper left corner and width at `place`, in inches.

    Args:
        names: of the rows, written to the left of `place`; empty where a neighbour has them.

    Returns:
        Its axes, and what a colour key is made of.
    """
    left, top, width = place
    axes = axes_at(figure, left, top, width, height_of(len(grid)))
    image = draw_heat(axes, grid, steps, **look)
    if len(grid) > MOST_ACROSS:  # one begins to read at the top
        axes.tick_params(axis="x", top=True, labeltop=True)
        title = f"{title}, over the steps" if title else "over the steps"
    axes.set_title(title, fontsize=9, loc="left", color=INK)
    if names:
        write_names(axes, names)
    else:
        axes.set_yticks([])
    return axes, image


def draw_key(
    figure: "Figure", left: float, top: float, n_rows: int, image: Any, label: str = "", **how: Any
) -> Any:
    """Draw the key of the colours, no taller than can be seen at a glance."""
    axes = axes_at(figure, left + _KEY_GAP, top, _KEY, min(height_of(n_rows), _KEY_HEIGHT))
    key = figure.colorbar(image, cax=axes, label=label, **how)
    key.ax.tick_params(labelsize=POINTS)
    return key


def name_powers(key: Any, low: int, high: int) -> None:
    """Name the colours of log10 of something, from 10^low to 10^high."""
    powers = list(range(low, high + 1))
    shown = powers[:: -(-len(powers) // 8)]
    key.set_ticks(shown, labels=[f"1e{power}" for power in shown])
