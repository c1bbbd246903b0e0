"""A page of heat maps of a training: layers downwards, steps to the right, findings on them."""

from collections.abc import Sequence
from typing import Any

from modelscope_cli.records.watch import WatchRecord
from modelscope_cli.report import training_curves as curves
from modelscope_cli.report.canvas import INK, MISSING, axes_at, new_figure
from modelscope_cli.report.finding_marks import by_layer, mark_rows, room_for_codes
from modelscope_cli.report.layer_names import MOST_ACROSS, POINTS, ROW, Name, room_for, write_names

_HEAD, _LEGEND, _TITLE, _FOOT, _EDGE = 0.4, 0.25, 0.3, 0.55, 0.1  # inches
_KEY, _KEY_ROOM, _KEY_HEIGHT = 0.14, 0.8, 4.0
_WIDE_ROW = 0.26  # where there are few


def figure_title(record: WatchRecord, what: str) -> str:
    """Return what every figure of a watched training is headed with."""
    return f"{record.run.model.name}: {what}"


class HeatPage:
    """A figure of `n_heats` heat maps side by side that share their rows.

    Args:
        labels: of the rows, as findings name them.
        above: inches to leave free above the maps, as for a loss.
    """

    def __init__(
        self,
        record: WatchRecord,
        what: str,
        names: Sequence[Name],
        labels: Sequence[str],
        steps: Sequence[int],
        *,
        n_heats: int,
        width: float,
        above: float = 0.0,
    ) -> None:
        row = ROW if len(names) > MOST_ACROSS else _WIDE_ROW
        self._names, self._labels, self._steps = names, labels, steps
        self._findings = by_layer(record.findings)
        self._codes = room_for_codes(labels, self._findings)
        self._high = row * len(names)
        self.top = _HEAD + _LEGEND + above + _TITLE
        height = self.top + self._high + _FOOT
        self.figure = new_figure(width, height, figure_title(record, what), is_laid_out=False)
        self.left = room_for(self.figure, names) + _EDGE
        self._each = (width - self.left - _EDGE) / n_heats
        self.width = self._each - _KEY_ROOM - self._codes - _EDGE
        self.axes: list[Any] = []

    def place(self, number: int) -> float:
        """Return where a map begins, in inches from the left."""
        return self.left + self._each * number

    def heat(self, grid: Any, title: str, **look: Any) -> tuple[Any, Any]:
        """Draw the next map; return its axes, and what a colour key is made of."""
        left = self.place(len(self.axes))
        axes = axes_at(self.figure, left, self.top, self.width, self._high)
        image = curves.draw_heat(axes, grid, self._steps, **look)
        axes.set_title(title, fontsize=9, loc="left", color=INK)
        if self.axes:
            axes.set_yticks([])
        else:
            write_names(axes, self._names)
        mark_rows(axes, self._labels, self._findings, self._steps[0])
        self.axes.append(axes)
        return axes, image

    def key(
        self, image: Any, label: str = "", *, powers: range | None = None, extend: str = "neither"
    ) -> Any:
        """Draw the colour key of the map drawn last."""
        left = self.place(len(self.axes) - 1) + self.width + self._codes + _EDGE
        axes = axes_at(self.figure, left, self.top, _KEY, min(self._high, _KEY_HEIGHT))
        key = self.figure.colorbar(image, cax=axes, label=label, extend=extend)
        if powers is not None:
            shown = list(powers)[:: -(-len(powers) // 8)]
            key.set_ticks(shown, labels=[f"1e{power}" for power in shown])
        key.ax.tick_params(labelsize=POINTS)
        return key

    def finish(self, missing: str = "not recorded") -> Any:
        """Explain what the maps are marked with, below the title; return the figure."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        handles: list[Any] = [Patch(color=MISSING, label=missing)]
        marked, _ = self.axes[0].get_legend_handles_labels()
        handles += marked
        if any(label in self._findings for label in self._labels):
            look: dict[str, Any] = {"ls": "", "marker": ">", "mfc": "#d1495b", "mec": "white"}
            handles.append(Line2D([], [], **look, label="since when something is wrong, and its code"))
        height = self.figure.get_figheight()
        self.figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(self.left / self.figure.get_figwidth(), 1 - _HEAD / height),
            ncols=len(handles),
            frameon=False,
            fontsize=8,
            borderaxespad=0.0,
        )
        return self.figure
